// What a candidate plan needs and takes, without making its program: bytes equal to the full count, time of in-order streams.
//
// Made once per graph (one batch shape) and then asked for many candidates. The schedule is the same code that makes the program;
// only the sink differs: it adds up the compiled bodies of segments task by task. Equal micro-steps in the middle of a step are
// looked at once.
//
//   QuickForecast quick(graph, segments, {.reduce = DType::F32, .rounding_bytes = 512}, times);
//   QuickFigures f = quick.figures(input, Phase::Step2);
//
// Models: per stream, a task starts when the stream's task before it and all it waits on have ended. Leaves out: contention of
// collectives on shared links (simulator/). Law (tests): peak_bytes equals count_memory(program, rounding_bytes).peak_bytes. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/lowering/schedules/shardplan.h"

namespace shardplan {

struct QuickFigures {
  std::int64_t peak_bytes = 0;  // each buffer rounded up to BodyOptions::rounding_bytes
  std::int64_t end_bytes = 0;
  std::int64_t nanoseconds = 0;  // of the phase; 0 without times
};

// Who knows how long work takes. Empty functions: no time.
struct WorkTimes {
  std::function<std::int64_t(const KernelWork&)> kernel_nanoseconds;
  std::function<std::int64_t(const CollectiveWork&, std::int32_t degree, std::int32_t stride)> collective_nanoseconds;
  bool synchronous = false;  // one task after the other, as the CPU runtime does
};

class QuickForecast {
 public:
  // Graph and segments outlive this. `options.kernel_nanoseconds` is taken from `times`.
  QuickForecast(const OpGraph& graph, const Segments& segments, BodyOptions options, WorkTimes times = {});

  [[nodiscard]] QuickFigures figures(const ScheduleInput& input, Phase phase);
  // The whole phase to another sink; bodies carry their time.
  void emit(const ScheduleInput& input, Phase phase, TaskSink& sink) { schedule_.emit(input, phase, sink); }
  [[nodiscard]] SegmentBodies& bodies() { return bodies_; }

 private:
  SegmentBodies bodies_;
  ShardplanSchedule schedule_;
  WorkTimes times_;
  std::vector<std::int64_t> task_ends_;  // scratch, by TaskId
  ScheduleInput shortened_;              // scratch: fewer micro-steps
};

}  // namespace shardplan
