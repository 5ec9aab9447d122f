#include "planner/lowering/quick_forecast.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

// Adds up bytes and time of the tasks that a schedule emits.
class StepCounter final : public TaskSink {
 public:
  StepCounter(const WorkTimes& times, const MeshDegrees& mesh, std::int64_t rounding_bytes, std::vector<std::int64_t>& task_ends)
      : times_(times), mesh_(mesh), rounding_bytes_(rounding_bytes), task_ends_(task_ends) {
    task_ends_.clear();
  }

  void resident(const BufferKey&, std::int64_t bytes, MemoryCategory) override {
    level_ += rounded(bytes);
    peak_ = std::max(peak_, level_);
  }

  TaskId begin(const TaskHead& head) override {
    stream_ = times_.synchronous ? 0 : head.stream.at();
    now_ = clocks_[stream_];
    if (head.kind == TaskKind::Input) micro_step_starts_.push_back(now_);
    return TaskId(static_cast<std::int64_t>(task_ends_.size()));
  }

  void wait(TaskId earlier) override {
    if (earlier.at() < task_ends_.size()) now_ = std::max(now_, task_ends_[earlier.at()]);
  }

  void allocate(const BufferKey&, std::int64_t bytes, MemoryCategory) override {
    level_ += rounded(bytes);
    peak_ = std::max(peak_, level_);
  }

  void release(const BufferKey&, std::int64_t bytes) override { level_ -= rounded(bytes); }

  void kernel(const KernelWork& work) override {
    if (times_.kernel_nanoseconds) now_ += times_.kernel_nanoseconds(work);
  }

  void collective(const CollectiveWork& work) override {
    if (!times_.collective_nanoseconds) return;
    const bool is_shard = work.axis == kShardAxis;
    now_ += times_.collective_nanoseconds(work, is_shard ? mesh_.shard : mesh_.replicate, is_shard ? 1 : mesh_.shard);
  }

  void body(const SegmentBody& body, std::span<const OutsideDecision> decisions) override {
    for (std::size_t i = 0; i < decisions.size(); ++i) {
      pass(body.pieces[i]);
      if (!decisions[i].happens) continue;
      switch (body.decided_outside[i].what) {
        case Happening::GradientWrite:
          level_ += rounded(decisions[i].bytes);
          break;
        case Happening::CrossingAllocate:
          level_ += body.pieces[i].counted_bytes;
          break;
        case Happening::CrossingLastRead:
          level_ -= body.pieces[i].counted_bytes;
          break;
        case Happening::Allocate:
        case Happening::Free:
        case Happening::Scratch:
          CHECK(false, "a body decides about its own storages");
      }
      peak_ = std::max(peak_, level_);
    }
    pass(body.pieces.back());
    now_ += body.nanoseconds;
  }

  void end() override {
    task_ends_.push_back(now_);
    clocks_[stream_] = now_;
  }

  // `num_left_out`: micro-steps like the second one that were not emitted.
  [[nodiscard]] QuickFigures figures(std::int32_t num_left_out) const {
    QuickFigures figures{
        .peak_bytes = peak_, .end_bytes = level_, .nanoseconds = *std::max_element(clocks_.begin(), clocks_.end())};
    if (num_left_out > 0) figures.nanoseconds += num_left_out * (micro_step_starts_[2] - micro_step_starts_[1]);
    return figures;
  }

 private:
  [[nodiscard]] std::int64_t rounded(std::int64_t bytes) const { return round_up(bytes, rounding_bytes_); }

  void pass(const BodyPiece& piece) {
    peak_ = std::max(peak_, level_ + piece.counted_peak);
    level_ += piece.counted_net;
  }

  const WorkTimes& times_;
  MeshDegrees mesh_;
  std::int64_t rounding_bytes_;
  std::vector<std::int64_t>& task_ends_;
  std::int64_t level_ = 0, peak_ = 0;
  std::int64_t now_ = 0;
  std::size_t stream_ = 0;
  std::array<std::int64_t, 4> clocks_{};
  std::vector<std::int64_t> micro_step_starts_;
};

BodyOptions with_times(BodyOptions options, const WorkTimes& times) {
  options.kernel_nanoseconds = times.kernel_nanoseconds;
  return options;
}

// The first micro-step starts without gradients, the last one reduces; all between do the same.
constexpr std::int32_t kDifferentMicroSteps = 3;

}  // namespace

QuickForecast::QuickForecast(const OpGraph& graph, const Segments& segments, BodyOptions options, WorkTimes times)
    : bodies_(graph, segments, with_times(std::move(options), times)), schedule_(bodies_), times_(std::move(times)) {}

QuickFigures QuickForecast::figures(const ScheduleInput& input, Phase phase) {
  StepCounter counter(times_, input.mesh, bodies_.options().rounding_bytes, task_ends_);
  const bool is_step = phase == Phase::Step1 || phase == Phase::Step2;
  if (!is_step || input.grad_accum <= kDifferentMicroSteps) {
    schedule_.emit(input, phase, counter);
    return counter.figures(0);
  }
  shortened_ = input;
  shortened_.grad_accum = kDifferentMicroSteps;
  schedule_.emit(shortened_, phase, counter);
  return counter.figures(input.grad_accum - kDifferentMicroSteps);
}

}  // namespace shardplan
