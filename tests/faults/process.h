// Starts a program with its output in files, and waits for it with a deadline.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shardplan {

struct ProcessRequest {
  std::vector<std::string> arguments;                          // the first is the program
  std::vector<std::pair<std::string, std::string>> variables;  // added to the environment
  std::filesystem::path out, err;
  std::optional<std::int64_t> largest_file_bytes;  // RLIMIT_FSIZE
};

class Process {
 public:
  explicit Process(const ProcessRequest& request) : pid_(::fork()) {
    if (pid_ != 0) return;
    for (const auto& [file, descriptor] : {std::pair(request.out, STDOUT_FILENO), std::pair(request.err, STDERR_FILENO)}) {
      ::dup2(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), descriptor);
    }
    if (request.largest_file_bytes) {
      const rlimit limit{static_cast<rlim_t>(*request.largest_file_bytes), static_cast<rlim_t>(*request.largest_file_bytes)};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    for (const auto& [name, value] : request.variables) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const std::string& a : request.arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Process() {
    if (ended_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Exit code, 128 + signal, or nothing when it still runs after `seconds`.
  std::optional<int> wait(double seconds) {
    int status = 0;
    if (!until(seconds, [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) return std::nullopt;
    ended_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  // Waits until it holds; false when the process ends or time is up before.
  bool runs_until(double seconds, const std::function<bool()>& holds) {
    siginfo_t state{};
    const bool came = until(seconds, [&] {
      return holds() ||
             (::waitid(P_PID, static_cast<id_t>(pid_), &state, WEXITED | WNOHANG | WNOWAIT) == 0 && state.si_pid == pid_);
    });
    return came && holds();
  }

  static bool until(double seconds, const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

 private:
  pid_t pid_;
  bool ended_ = false;
};

}  // namespace shardplan
