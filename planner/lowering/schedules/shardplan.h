// The schedule of our own runtime: which tasks run in which order, and what is born and dies in them. docs/schedule_shardplan.md.
//
// Written against a TaskSink, so that the full program and the quick count come from the same lines.
// Before: units, spans, degrees, micro-steps of a plan. After: the tasks of one phase.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/plan.h"
#include "planner/lowering/segment_bodies.h"
#include "planner/lowering/task_sink.h"
#include "planner/lowering/unit_layout.h"

namespace shardplan {

// What the schedule needs to know of a plan. `units` and `places` outlive the call.
struct ScheduleInput {
  const std::vector<UnitLayout>* units = nullptr;
  const std::vector<ParameterPlace>* places = nullptr;
  std::vector<bool> reshard_after_forward;  // by UnitId
  std::vector<SpanPlan> spans;              // ascending, disjoint, without the first segment
  DeviceKind device = DeviceKind::Cuda;
  Precision precision;
  MeshDegrees mesh;
  std::int32_t grad_accum = 1;
  AccumSync accum_sync = AccumSync::Every;
  std::int32_t prefetch = 1;
  InitPath init = InitPath::Simple;
  bool clips = false;
};

[[nodiscard]] ScheduleInput schedule_input(const Plan& plan, const std::vector<UnitLayout>& units,
                                           const std::vector<ParameterPlace>& places);

class ShardplanSchedule {
 public:
  // Bodies outlive this. Scratch is kept between calls, so that a search allocates little.
  explicit ShardplanSchedule(SegmentBodies& bodies);

  void emit(const ScheduleInput& input, Phase phase, TaskSink& sink);

 private:
  struct ComputeTask {
    TaskHead head;
    std::int32_t first_body = 0, end_body = 0;  // of bodies_
    std::int32_t first_read = 0, end_read = 0;  // of unit_reads_
  };
  struct PlacedBody {
    const SegmentBody* body = nullptr;
    const SegmentBody* adding = nullptr;  // of backward, when gradients of an earlier micro-step are there
    std::int32_t span = -1;               // whose instances it reads; -1 in forward
  };
  struct UnitAtTask {
    std::int32_t task = 0;
    UnitId unit;
  };
  static constexpr std::int64_t kStepCounterBytes = 4;
  static constexpr int kForwardUse = 0;
  static constexpr int kBackwardUse = 1;
  // First and last task that reads a unit, forward and backward; -1: none.
  struct UnitUse {
    std::int32_t first[2] = {-1, -1};
    std::int32_t last[2] = {-1, -1};
  };
  struct UnitState {
    bool has_full_grad = false;
    bool has_sharded_grad = false;
    std::int32_t num_contributions = 0;
    std::int32_t contributions_left = 0;
    TaskId gather;
  };

  // What happens in a micro-step, before anything is emitted.
  void lay_out(bool evaluates);
  void lay_out_forward(bool evaluates);
  void lay_out_backward();
  void lay_out_recompute(std::int32_t span);
  void place_spans();
  void add_task(TaskHead head, std::int32_t first_body);
  void place_gathers(bool evaluates);
  void find_last_readers();
  [[nodiscard]] std::int32_t instance_for(const PlacedBody& placed, const Crossing& crossing) const;

  void emit_load();
  void emit_save();
  void emit_step(bool is_first);
  void emit_evaluation();
  void emit_residents(bool with_states);
  void emit_micro_step(std::int32_t micro_step);
  void emit_inputs(std::int32_t micro_step);
  void emit_gather(UnitId unit, std::int32_t micro_step);
  void emit_free(UnitId unit, std::int32_t micro_step);
  void emit_compute(const ComputeTask& task, std::int32_t index, std::int32_t micro_step);
  void emit_body(const PlacedBody& placed, std::int32_t body_index, bool adds);
  void emit_reductions(const ComputeTask& task, TaskId backward, std::int32_t micro_step);
  void emit_reduction(UnitId unit, TaskId backward, std::int32_t micro_step);
  void finish_gradient(UnitId unit);
  void release_waiting_gradient();
  void emit_gradient_norm();
  void emit_clip();
  void emit_optimizer(UnitId unit, bool is_first, bool first_unit);
  void emit_zero_gradients();

  [[nodiscard]] const FlatGroup* trainable_group(UnitId unit) const;
  [[nodiscard]] std::int32_t num_units() const { return static_cast<std::int32_t>(input_->units->size()); }
  [[nodiscard]] bool gathers() const;
  [[nodiscard]] bool full_grad_is_gradient() const;
  [[nodiscard]] bool gradients_stay() const;
  [[nodiscard]] std::int64_t stored_bytes(const FlatGroup& group) const;

  SegmentBodies& bodies_;
  std::vector<StorageId> constants_;
  std::vector<std::int32_t> input_crossings_;

  const ScheduleInput* input_ = nullptr;
  TaskSink* sink_ = nullptr;
  std::vector<ComputeTask> tasks_;
  std::vector<PlacedBody> placed_;
  std::vector<UnitId> unit_reads_;
  std::vector<std::int32_t> span_of_;                    // by SegmentId
  std::vector<KeepSet> keeps_;                           // by span
  std::vector<const RecomputedSegment*> recomputed_;     // by SegmentId
  std::vector<std::uint64_t> demand_;                    // by SegmentId
  std::vector<UnitUse> uses_;                            // by UnitId
  std::vector<UnitAtTask> use_order_, gathers_, frees_;  // the last two by task
  std::size_t next_free_ = 0;
  std::vector<std::int32_t> last_reader_;  // by crossing * 2 + instance: position in placed_
  std::vector<UnitState> unit_states_;
  std::vector<OutsideDecision> decisions_;
  TaskId last_free_, free_waited_on_, last_reduction_;
  UnitId waiting_gradient_;  // CUDA: its reduction may still run
  TaskId waiting_reduction_, finished_reduction_;
};

}  // namespace shardplan
