// The plan: every decision, explicit, and what it was made for. What -o writes and `execute` runs.
//
// Words of the command line ("blocks:2", "halves:mlp") are expanded to explicit units and spans over segments, so that a plan file
// can say what no word says. `words` keeps how they were given, for people and for export; it decides nothing. On disk:
// docs/plan.md, schema_version kPlanFormatVersion. Reading is strict. Writing then reading gives an equal value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "core/hardware_spec.h"
#include "core/ids.h"
#include "core/workload_spec.h"
#include "planner/graph/kernels.h"
#include "planner/graph/model_spec.h"
#include "planner/graph/op_graph.h"
#include "planner/graph/op_kind.h"

namespace shardplan {

inline constexpr int kPlanFormatVersion = 1;

inline constexpr std::int32_t kMostThreads = 1024;  // CPU threads of a rank

struct UnitPlan {
  std::string name;                 // "blocks.3", "embed", "head", "root"
  std::vector<SegmentId> segments;  // ascending; their parameters, each in the first unit that names it
  bool reshard_after_forward = true;
  bool operator==(const UnitPlan&) const = default;
};

// Consecutive segments recomputed together; only the span's input and the results of `keep` ops stay.
struct SpanPlan {
  SegmentId first, last;  // both included
  std::vector<OpKind> keep;
  bool operator==(const SpanPlan&) const = default;
};

enum class AccumSync : std::uint8_t { Last, Every };
enum class InitPath : std::uint8_t { Simple, Delayed };
enum class Target : std::uint8_t { Shardplan };
[[nodiscard]] std::string_view target_name(Target target);

struct MeshDegrees {
  std::int32_t shard = 1;
  std::int32_t replicate = 1;
  std::int32_t tp = 1;
  [[nodiscard]] std::int32_t world() const { return shard * replicate * tp; }
  bool operator==(const MeshDegrees&) const = default;
};

struct Plan {
  std::string model_name;
  nlohmann::ordered_json model_config;  // the Hugging Face config, whole
  std::string hardware_id;
  DeviceKind device = DeviceKind::Cuda;
  Target target = Target::Shardplan;
  WorkloadSpec workload;
  MeshDegrees mesh;
  std::int32_t num_nodes = 1;
  std::int64_t micro_batch = 1;
  std::int32_t grad_accum = 1;
  AccumSync accum_sync = AccumSync::Every;
  std::vector<UnitPlan> units;
  std::vector<SpanPlan> spans;
  std::int32_t prefetch = 1;  // units gathered ahead of use
  InitPath init = InitPath::Simple;
  Kernels kernels;
  std::map<std::string, std::string> words;  // "units": "blocks", "recompute": "full", ...
  bool operator==(const Plan&) const = default;
};

[[nodiscard]] nlohmann::ordered_json json_from_plan(const Plan& plan);
[[nodiscard]] Plan plan_from_json(const nlohmann::ordered_json& document, const std::string& file);
[[nodiscard]] Plan plan_from_file(const std::filesystem::path& file);
// Hex of a 64-bit hash of the canonical JSON: ranks compare it before any data moves.
[[nodiscard]] std::string plan_hash(const Plan& plan);

// What a plan is lowered from, rebuilt from the plan alone. The table has the trainable selection applied.
[[nodiscard]] ModelSpec model_of(const Plan& plan);
[[nodiscard]] GraphRequest graph_request_of(const Plan& plan);

// Words of plan files.
[[nodiscard]] std::string_view accum_sync_name(AccumSync sync);
[[nodiscard]] std::string_view init_path_name(InitPath init);

}  // namespace shardplan
