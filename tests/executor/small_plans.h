// Plans for small models, made from a few choices, and the pieces around an interpreter that a test needs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "executor/run_program.h"
#include "planner/lowering/plan.h"
#include "tests/executor/small_models.h"

namespace shardplan {

enum class Wrap : std::uint8_t { Blocks, TwoBlocks, Halves, Whole };
enum class Recompute : std::uint8_t { None, FirstBlock, Halves, All, KeepAttention };

struct PlanChoice {
  SmallModel model;
  nlohmann::ordered_json config;  // instead of `model`'s when not null
  std::vector<std::string> train = {"all"};
  Precision precision{.stored = DType::F32, .compute = DType::F32, .reduce = DType::F32, .state = DType::F32};
  std::int32_t shard = 1, replicate = 1;
  Wrap wrap = Wrap::Blocks;
  bool joint_root = false;
  bool reshard = true;
  Recompute recompute = Recompute::None;
  std::int64_t batch = 2, seq_len = 37;
  std::int32_t grad_accum = 1;
  AccumSync accum_sync = AccumSync::Every;
  std::int32_t prefetch = 0;
  double clip_norm = 0;
  InitPath init = InitPath::Simple;
};

[[nodiscard]] Plan plan_of(const PlanChoice& choice);

// Fills stretches with values that depend on parameter and element alone, without allocating tensors; saving keeps what it is
// shown.
class SeededFiles final : public UnitFiles {
 public:
  SeededFiles(const Lowered& lowered, std::int32_t shard_index);
  void load(UnitId unit, std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) override;
  void save(UnitId unit, const std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) override;

  // By unit and group: this rank's stretch as fp32.
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<float>> saved;

 private:
  const Lowered& lowered_;
  std::int32_t shard_index_;
};

// Ids and targets of one step of one data rank; every ninth target is none.
struct SeededStep {
  SeededStep(const PlanChoice& choice, std::int32_t data_rank, std::int64_t step);
  StepInput input;
  std::vector<std::int64_t> ids, targets;
};

}  // namespace shardplan
