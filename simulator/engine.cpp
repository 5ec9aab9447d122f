#include "simulator/engine.h"

#include <algorithm>

#include "core/error.h"
#include "simulator/collectives.h"
#include "simulator/cost_model.h"
#include "simulator/event_queue.h"
#include "simulator/link_network.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

enum class Step : std::uint8_t { KernelsEnd, TransferBegins };

struct Event {
  TaskId task;
  Step step = Step::KernelsEnd;
};

// Who waits on whom, as counts and lists: the order of the lists does not matter, starts are ordered by TaskId.
class Dependencies {
 public:
  Dependencies(const ClockProgram& program, bool synchronous) : unmet_(program.tasks.size()), first_(program.tasks.size() + 1) {
    // Counting sort of edges by their source, so that a program of any size needs two allocations.
    each_edge(program, synchronous, [this](TaskId before, TaskId after) {
      ++first_[before.at() + 1];
      ++unmet_[after.at()];
    });
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    followers_.resize(first_.back());
    std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
    each_edge(program, synchronous, [&](TaskId before, TaskId after) { followers_[next[before.at()]++] = after; });
  }

  [[nodiscard]] bool is_ready(TaskId task) const { return unmet_[task.at()] == 0; }
  // Calls `ready` for every task that waited for this one last.
  template <class Ready>
  void ended(TaskId task, Ready ready) {
    for (std::size_t i = first_[task.at()]; i < first_[task.at() + 1]; ++i) {
      if (--unmet_[followers_[i].at()] == 0) ready(followers_[i]);
    }
  }

 private:
  template <class Visit>
  static void each_edge(const ClockProgram& program, bool synchronous, Visit visit) {
    std::vector<TaskId> last_of_stream(static_cast<std::size_t>(program.num_streams));
    for (std::size_t i = 0; i < program.tasks.size(); ++i) {
      const ClockTask& task = program.tasks[i];
      const TaskId id(static_cast<std::int64_t>(i));
      TaskId& last = synchronous ? last_of_stream.front() : last_of_stream[task.stream.at()];
      if (last.is_set()) visit(last, id);
      last = id;
      for (std::int32_t w = task.first_wait; w < task.end_wait; ++w) visit(program.waits[static_cast<std::size_t>(w)], id);
    }
  }

  std::vector<std::int32_t> unmet_;
  std::vector<std::size_t> first_;  // by TaskId: where its followers begin
  std::vector<TaskId> followers_;
};

class Clock {
 public:
  Clock(const ClockProgram& program, bool synchronous)
      : program_(program), dependencies_(program, synchronous), times_(program.tasks.size()) {}

  std::vector<TaskTimes> run() {
    for (std::size_t i = 0; i < program_.tasks.size(); ++i) {
      const TaskId id(static_cast<std::int64_t>(i));
      if (dependencies_.is_ready(id)) start(id, nanoseconds(0));
    }
    while (advance()) {
    }
    CHECK(num_ended_ == program_.tasks.size(), "every task of a valid program ends");
    return std::move(times_);
  }

 private:
  // The next event or completed transfer; transfers first at one instant, so that what waits on both starts once.
  bool advance() {
    const std::optional<LinkNetwork::Completion> completion = network_.next();
    if (completion && (events_.empty() || completion->at <= events_.next_time())) {
      network_.complete(*completion);
      transfer_ended(completion->task, completion->at);
      return true;
    }
    if (events_.empty()) return false;
    const nanoseconds now = events_.next_time();
    const Event event = events_.take();
    switch (event.step) {
      case Step::KernelsEnd:
        kernels_ended(event.task, now);
        break;
      case Step::TransferBegins:
        network_.begin(event.task, task_of(event.task).collective.transfer, task_of(event.task).collective.links, now);
        break;
    }
    return true;
  }

  [[nodiscard]] const ClockTask& task_of(TaskId id) const { return program_.tasks[id.at()]; }

  void start(TaskId id, nanoseconds now) {
    times_[id.at()].task.start = now;
    times_[id.at()].collective = {now, now};
    if (task_of(id).has_collective && !task_of(id).kernels_first) {
      start_collective(id, now);
    } else {
      start_kernels(id, now);
    }
  }

  void start_kernels(TaskId id, nanoseconds now) {
    times_[id.at()].kernels_start = now;
    events_.add(now + task_of(id).kernels, {.task = id, .step = Step::KernelsEnd});
  }

  void start_collective(TaskId id, nanoseconds now) {
    times_[id.at()].collective.start = now;
    events_.add(now + task_of(id).collective.latency, {.task = id, .step = Step::TransferBegins});
  }

  void kernels_ended(TaskId id, nanoseconds now) {
    if (task_of(id).has_collective && task_of(id).kernels_first) {
      start_collective(id, now);
    } else {
      end(id, now);
    }
  }

  void transfer_ended(TaskId id, nanoseconds now) {
    times_[id.at()].collective.end = now;
    if (task_of(id).kernels_first) {
      end(id, now);
    } else {
      start_kernels(id, now);
    }
  }

  void end(TaskId id, nanoseconds now) {
    times_[id.at()].task.end = now;
    ++num_ended_;
    dependencies_.ended(id, [&](TaskId follower) { start(follower, now); });
  }

  const ClockProgram& program_;
  Dependencies dependencies_;
  EventQueue<Event> events_;
  LinkNetwork network_;
  std::vector<TaskTimes> times_;
  std::size_t num_ended_ = 0;
};

}  // namespace

ClockProgram clock_program(const StepProgram& program, const HardwareSpec& hardware, std::int32_t ranks_per_node) {
  ClockProgram clock{.num_streams = static_cast<std::int32_t>(program.streams.size())};
  clock.tasks.reserve(program.tasks.size());
  for (const Task& task : program.tasks) {
    ClockTask c{.stream = task.stream,
                .kernels_first = task.kind == TaskKind::Gather,
                .has_collective = task.collective.has_value(),
                .first_wait = static_cast<std::int32_t>(clock.waits.size())};
    for (const KernelWork& work : task.kernels) c.kernels += kernel_time(work, hardware);
    if (task.collective)
      c.collective = collective_cost(*task.collective, program.mesh[task.collective->axis.at()], hardware, ranks_per_node);
    clock.waits.insert(clock.waits.end(), task.waits_on.begin(), task.waits_on.end());
    c.end_wait = static_cast<std::int32_t>(clock.waits.size());
    clock.tasks.push_back(c);
  }
  return clock;
}

std::vector<TaskTimes> run_clock(const ClockProgram& program, bool synchronous) {
  if (program.tasks.empty()) return {};
  return Clock(program, synchronous).run();
}

std::vector<TaskTimes> run_clock(const StepProgram& program, const HardwareSpec& hardware, const SimulateOptions& options) {
  return run_clock(clock_program(program, hardware, options.ranks_per_node), options.synchronous);
}

}  // namespace shardplan
