#include "executor/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "executor/store_host.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t g_stop_signals = 0;  // the only state that a signal handler may touch
void note_stop(int signal) {
  g_stop_signals = g_stop_signals + 1;
  if (signal == SIGINT && g_stop_signals > 1) ::_exit(128 + SIGINT);
}

void close_all(std::initializer_list<int> descriptors) {
  for (const int d : descriptors) ::close(d);
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)), "launcher of local ranks");
  return ends;
}

// What a rank says when it ends with an exception.
struct Failure {
  int code = 1;
  bool peer_lost = false;
  std::string problem, where, remedy;
};

std::string text_from_failure(const Failure& f) {
  return nlohmann::json{
      {"code", f.code}, {"peer_lost", f.peer_lost}, {"problem", f.problem}, {"where", f.where}, {"remedy", f.remedy}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// One forked rank, seen from the launcher.
struct Child {
  pid_t pid = -1;
  int output = -1, errors = -1, report = -1;  // read ends
  int port = -1;                              // write end: receives the store's port
  std::string output_line, error_line, report_text;
  bool ended = false, was_killed_here = false;
  int status = 0;
  Clock::time_point ended_at;
};

[[noreturn]] void run_child(const RankPlace& bare, int port_pipe, int report_pipe,
                            const std::function<int(const RankPlace&)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its launcher
  RankPlace place = bare;
  if (::read(port_pipe, &place.store_port, sizeof place.store_port) != sizeof place.store_port) ::_exit(1);
  Failure failure;
  try {
    const int code = body(place);
    std::fflush(nullptr);
    ::_exit(code);
  } catch (const PeerLost& e) {
    failure = {static_cast<int>(e.code()), true, e.problem(), e.where(), e.remedy()};
  } catch (const Error& e) {
    failure = {static_cast<int>(e.code()), false, e.problem(), e.where(), e.remedy()};
  } catch (const std::exception& e) {
    failure = {1, false, e.what(), "", ""};
  }
  std::fflush(nullptr);
  const std::string text = text_from_failure(failure);
  if (::write(report_pipe, text.data(), text.size()) < 0) ::_exit(1);
  ::_exit(failure.code);
}

Child start_child(const RankPlace& place, const std::function<int(const RankPlace&)>& body, const std::vector<Child>& others) {
  const auto output = make_pipe(), errors = make_pipe(), report = make_pipe(), port = make_pipe();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw IoError(fmt::format("cannot start rank {}: {}", place.rank, std::strerror(errno)), "launcher of local ranks");
  if (pid == 0) {
    for (const Child& c : others) close_all({c.output, c.errors, c.report, c.port});
    ::dup2(output[1], STDOUT_FILENO);
    ::dup2(errors[1], STDERR_FILENO);
    close_all({output[0], errors[0], report[0], port[1], output[1], errors[1]});
    run_child(place, port[0], report[1], body);
  }
  close_all({output[1], errors[1], report[1], port[0]});
  for (const int d : {output[0], errors[0], report[0]}) ::fcntl(d, F_SETFL, O_NONBLOCK);
  Child c;
  c.pid = pid;
  c.output = output[0];
  c.errors = errors[0];
  c.report = report[0];
  c.port = port[1];
  return c;
}

// Moves what is readable to `rest`; prints whole lines behind `prefix`. True while the pipe is open.
bool forward(int& descriptor, std::string& rest, const std::string& prefix, std::FILE* to, bool last) {
  std::array<char, 4096> block{};
  while (descriptor >= 0) {
    const ssize_t n = ::read(descriptor, block.data(), block.size());
    if (n > 0) {
      rest.append(block.data(), static_cast<std::size_t>(n));
      continue;
    }
    if (n == 0) {
      ::close(descriptor);
      descriptor = -1;
      last = true;
    } else if (errno == EINTR) {
      continue;
    }
    break;
  }
  if (to != nullptr) {
    for (std::size_t end = rest.find('\n'); end != std::string::npos || (last && !rest.empty()); end = rest.find('\n')) {
      const std::string line = rest.substr(0, end);
      rest.erase(0, end == std::string::npos ? end : end + 1);
      std::fprintf(to, "%s%s\n", prefix.c_str(), line.c_str());
    }
    std::fflush(to);
  }
  return descriptor >= 0;
}

class LocalRanks {
 public:
  LocalRanks(std::int32_t ranks, const std::function<int(const RankPlace&)>& body) {
    for (std::int32_t r = 0; r < ranks; ++r) {
      const RankPlace place{.rank = r, .world = ranks, .local_rank = r, .local_world = ranks, .launcher = "execute"};
      children_.push_back(start_child(place, body, children_));
    }
  }
  ~LocalRanks() {
    for (Child& c : children_) {
      if (!c.ended) {
        ::kill(c.pid, SIGKILL);
        ::waitpid(c.pid, nullptr, 0);
      }
      for (const int d : {c.output, c.errors, c.report, c.port}) {
        if (d >= 0) ::close(d);
      }
    }
  }

  void tell_port(std::uint16_t port) {
    for (Child& c : children_) {
      // A rank that died already shows up when it is reaped.
      if (::write(c.port, &port, sizeof port) < 0 && errno != EPIPE)
        throw IoError(fmt::format("cannot reach a rank: {}", std::strerror(errno)), "launcher of local ranks");
    }
  }

  int wait(double grace_seconds) {
    bool stop_was_forwarded = false;
    std::optional<Clock::time_point> failed_at;
    while (!all_ended()) {
      pump(false);
      reap();
      if (stop_requested() && !stop_was_forwarded) {
        signal_all(SIGTERM);
        stop_was_forwarded = true;
      }
      if (!failed_at && !failures().empty()) failed_at = Clock::now();
      if (!failed_at) continue;
      const double since = std::chrono::duration<double>(Clock::now() - *failed_at).count();
      if (since > grace_seconds) signal_all(SIGKILL);  // these hang in a collective or in a kernel: nothing else stops them
    }
    pump(true);
    const std::vector<std::size_t> failed = failures();
    if (failed.empty()) return children_.empty() ? 0 : WEXITSTATUS(children_.front().status);
    throw_root_cause(failed);
  }

 private:
  [[nodiscard]] bool all_ended() const {
    for (const Child& c : children_) {
      if (!c.ended) return false;
    }
    return true;
  }

  void pump(bool last) {
    std::vector<pollfd> open;
    for (const Child& c : children_) {
      for (const int d : {c.output, c.errors, c.report}) {
        if (d >= 0) open.push_back({.fd = d, .events = POLLIN, .revents = 0});
      }
    }
    if (!last) ::poll(open.data(), open.size(), open.empty() ? 5 : 50);
    for (std::size_t r = 0; r < children_.size(); ++r) {
      Child& c = children_[r];
      const std::string prefix = fmt::format("[rank{}] ", r);
      forward(c.output, c.output_line, r == 0 ? "" : prefix, r == 0 ? stdout : stderr, last);
      forward(c.errors, c.error_line, prefix, stderr, last);
      forward(c.report, c.report_text, "", nullptr, last);
    }
  }

  void reap() {
    for (Child& c : children_) {
      if (c.ended || ::waitpid(c.pid, &c.status, WNOHANG) != c.pid) continue;
      c.ended = true;
      c.ended_at = Clock::now();
    }
  }

  void signal_all(int signal) {
    for (Child& c : children_) {
      if (c.ended) continue;
      ::kill(c.pid, signal);
      c.was_killed_here |= signal == SIGKILL;
    }
  }

  // Ranks that were killed or threw. A nonzero code without an exception is an answer that all ranks share.
  [[nodiscard]] std::vector<std::size_t> failures() const {
    std::vector<std::size_t> failed;
    for (std::size_t r = 0; r < children_.size(); ++r) {
      const Child& c = children_[r];
      if (c.ended && (WIFSIGNALED(c.status) || !c.report_text.empty()) && !c.was_killed_here) failed.push_back(r);
    }
    return failed;
  }

  [[noreturn]] void throw_root_cause(const std::vector<std::size_t>& failed) const {
    // Killed from outside first, then a failure of a rank's own, then ranks that only lost their peers; the earliest of each.
    const auto weight = [&](std::size_t r) {
      const Child& c = children_[r];
      if (WIFSIGNALED(c.status)) return 0;
      const nlohmann::json report = nlohmann::json::parse(c.report_text, nullptr, false);
      return report.is_object() && report.value("peer_lost", false) ? 2 : 1;
    };
    std::size_t root = failed.front();
    for (const std::size_t r : failed) {
      const bool is_earlier = weight(r) == weight(root) && children_[r].ended_at < children_[root].ended_at;
      if (weight(r) < weight(root) || is_earlier) root = r;
    }
    const Child& c = children_[root];
    if (WIFSIGNALED(c.status)) {
      const int signal = WTERMSIG(c.status);
      throw Error(ExitCode::RuntimeFailure, fmt::format("rank {} was ended by signal {} ({})", root, signal, ::strsignal(signal)),
                  fmt::format("process {}", c.pid),
                  signal == SIGKILL ? "look for the kernel's out-of-memory killer (dmesg), or for who killed it"
                                    : "the other ranks were stopped");
    }
    const nlohmann::json report = nlohmann::json::parse(c.report_text, nullptr, false);
    if (!report.is_object()) throw Error(ExitCode::RuntimeFailure, fmt::format("rank {} failed", root), "", c.report_text);
    throw Error(static_cast<ExitCode>(report.value("code", 1)), fmt::format("rank {}: {}", root, report.value("problem", "")),
                report.value("where", ""), report.value("remedy", ""));
  }

  std::vector<Child> children_;
};

}  // namespace

int run_local_ranks(std::int32_t ranks, const std::function<int(const RankPlace&)>& body, double grace_seconds) {
  std::signal(SIGPIPE, SIG_IGN);
  LocalRanks children(ranks, body);  // forks first: what follows may start threads
  const StoreHost store;
  children.tell_port(store.port());
  return children.wait(grace_seconds);
}

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note_stop;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

bool stop_requested() { return g_stop_signals > 0; }

}  // namespace shardplan
