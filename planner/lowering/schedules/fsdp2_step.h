// One training step of stock code: forward under frames, backward under autograd, recomputed layers, optimizer. See fsdp2.h.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/program_builder.h"
#include "planner/lowering/schedules/fsdp2.h"
#include "planner/lowering/schedules/fsdp2_machine.h"
#include "planner/lowering/stock/stock_backward.h"
#include "planner/lowering/stock/stock_forward.h"

namespace shardplan {

class Fsdp2Step {
 public:
  Fsdp2Step(const OpGraph& graph, const Segments& segments, const Fsdp2Switches& switches, Phase phase);

  Fsdp2Program run();

 private:
  static constexpr std::int32_t kNever = -1;
  enum Instance : std::size_t { Made = 0, Again = 1 };  // by the forward pass, by a recompute

  struct Layer {
    bool is_checkpointed = false;     // and a gradient flows through it
    std::int32_t stop = kNever;       // first position that its recompute no longer runs
    std::int32_t frame_end = kNever;  // position of the last node that saved something of it
  };

  // What autograd keeps, before anything is emitted.
  void find_checkpoints();
  void find_deaths();
  void saved_until(StorageId storage, Instance instance, std::int32_t position);
  [[nodiscard]] std::int32_t layer_at(std::int32_t position) const;
  [[nodiscard]] bool is_made_in(StorageId storage, std::int32_t layer) const;
  [[nodiscard]] bool input_needs_gradient(const Fsdp2Unit& unit) const;

  void place_residents();
  void micro_step(std::int32_t index);
  void forward();
  void return_from_root();
  [[nodiscard]] bool is_chunked() const { return switches_.chunk_tokens > 0; }
  void release_held(std::int32_t position, bool after_module);
  void drop_output();
  void backward();
  void step(const BackwardStep& step);
  void add_in_place_if_possible(const BackwardStep& step);
  void recompute(std::int32_t layer);
  void sum_of_uses(ParameterId parameter, StorageId storage);
  // fsdp2_chunked.cpp
  struct Piece {
    BufferId copy, log_probabilities, loss, total_weight;
  };
  [[nodiscard]] std::vector<std::int64_t> piece_tokens() const;
  [[nodiscard]] Piece run_piece(std::int64_t tokens);
  void chunked_forward();
  void chunked_backward();
  // fsdp2_optimizer.cpp
  void optimizer();
  void zero_gradients();
  [[nodiscard]] BufferId root_of_second_moment(ParameterId parameter);
  void divide_one_by_one(const std::vector<ParameterId>& parameters);
  [[nodiscard]] Buffer state_buffer(ParameterId parameter, BufferUse use) const;
  [[nodiscard]] std::vector<ParameterId> trained() const;

  // One task at a time; consecutive ops of one segment share it.
  void enter(TaskKind kind, SegmentId segment);
  void leave();
  void run_op(OpId op, Instance instance);
  void make(StorageId storage, Instance instance);
  void drop(StorageId storage, Instance instance);
  [[nodiscard]] BufferId temporary(std::int64_t bytes, std::string label, MemoryCategory category = MemoryCategory::Activation);
  [[nodiscard]] TaskId last_task() const { return TaskId(static_cast<std::int64_t>(builder_.program().tasks.size()) - 1); }

  const OpGraph& graph_;
  const Segments& segments_;
  const Fsdp2Switches& switches_;
  Phase phase_;
  StockForward forward_;
  StockBackward backward_;
  std::vector<Fsdp2Unit> units_;
  std::vector<UnitLayout> no_layouts_;
  SegmentBodies bodies_;
  ProgramBuilder builder_;
  Fsdp2Machine machine_;
  Fsdp2Program result_;

  std::vector<Layer> layers_;
  std::vector<std::int32_t> last_saver_[2];         // by StorageId, of each instance: position of the node that lets it go last
  std::vector<std::vector<StorageId>> let_go_[2];   // by position
  std::vector<std::vector<StorageId>> held_until_;  // by position: storages that no frame holds behind it
  std::vector<std::int32_t> uses_of_;               // by ParameterId: contributions in one backward
  std::vector<std::int32_t> uses_seen_;
  std::vector<BufferId> waiting_use_;     // by ParameterId: sum of the uses so far
  std::vector<BufferId> alive_[2];        // by StorageId
  std::vector<std::int32_t> unit_stage_;  // in backward: 0 not reached, 1 gathered, 2 done
  BufferId positions_, piece_labels_, loss_, kept_loss_, kept_logits_;
  std::int32_t micro_step_ = 0;
  bool in_task_ = false;
  TaskKind task_kind_ = TaskKind::Forward;
  SegmentId task_segment_;
};

}  // namespace shardplan
