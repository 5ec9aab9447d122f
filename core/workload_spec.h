// The fine-tuning job: what is trained, on what batches, in which precisions, by which optimizer.
//
// Names and defaults are those of the flags of `plan`. Batch shape and accumulation are decisions of the plan, not of the job; what
// the job fixes is here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace shardplan {

struct Precision {
  DType stored = DType::F32;
  DType compute = DType::BF16;
  DType reduce = DType::F32;
  DType state = DType::F32;
  DType buffer = DType::F32;
  bool operator==(const Precision&) const = default;
};

enum class LrSchedule : std::uint8_t { Constant, Linear, Cosine };
enum class WeightDecayScope : std::uint8_t { All, Matrices };

struct OptimizerSpec {
  std::string name = "adamw";
  std::string form = "fused";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  WeightDecayScope decay = WeightDecayScope::All;
  std::int32_t warmup_steps = 0;
  LrSchedule schedule = LrSchedule::Constant;
  double clip_norm = 0.0;  // 0 = no clipping
  bool operator==(const OptimizerSpec&) const = default;
};

struct WorkloadSpec {
  std::int64_t seq_len = 2048;
  std::int64_t global_batch = 0;             // sequences per optimizer step over all ranks; 0 = free
  std::vector<std::string> train = {"all"};  // words of --train
  std::vector<std::string> freeze;           // regular expressions of --freeze
  Precision precision;
  OptimizerSpec optimizer;
  std::int32_t steps = 0;  // 0 = given at execution
  std::optional<std::int64_t> shuffle_seed;
  bool pack = false;
  std::uint64_t seed = 7;
  bool operator==(const WorkloadSpec&) const = default;
};

}  // namespace shardplan
