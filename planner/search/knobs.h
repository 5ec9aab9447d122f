// The words of the decisions: what a person can fix, what the search enumerates, and what each word means for a plan.
//
// A KnobChoice is one point of the knob space; apply() expands its words to explicit units and spans over segments.
// Errors: none; the *_from_text functions return nothing for text that is no such word.
// Source of the words: docs/plan_command.md.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "planner/graph/op_kind.h"
#include "planner/graph/segments.h"
#include "planner/lowering/plan.h"

namespace shardplan {

// Which segments share a unit. Embedding, final norm and head are RootWord's.
struct UnitsWord {
  enum class Form : std::uint8_t {
    Blocks,  // `blocks` consecutive decoder blocks each
    Halves,  // attention half and MLP half of every block apart
    Whole,   // one unit for the whole model
  };
  Form form = Form::Blocks;
  std::int32_t blocks = 1;
  auto operator<=>(const UnitsWord&) const = default;
};

enum class RootWord : std::uint8_t {
  Joint,  // embedding, final norm and head in one unit: gathered from forward to the end of backward
  Split,  // embedding; final norm and head
};

enum class ReshardWord : std::uint8_t {
  All,         // every unit is dropped after forward and gathered again for backward
  None,        // every unit stays gathered until its backward is done
  AllButLast,  // only the unit of the last block stays
};

struct RecomputeWord {
  enum class Form : std::uint8_t {
    None,
    Full,             // every block is a span
    Blocks,           // blocks 0, K, 2K, ... are spans
    AttentionHalves,  // every attention half is a span
    MlpHalves,        // every MLP half is a span
    Keep,             // as Full, but results of the `keep` ops stay
  };
  Form form = Form::None;
  std::int32_t every = 1;    // Blocks: K >= 2
  std::vector<OpKind> keep;  // Keep: ascending
  auto operator<=>(const RecomputeWord&) const = default;
};

[[nodiscard]] std::string text_from_units(const UnitsWord& word);
[[nodiscard]] std::optional<UnitsWord> units_from_text(std::string_view text);
[[nodiscard]] std::string text_from_root(RootWord word);
[[nodiscard]] std::optional<RootWord> root_from_text(std::string_view text);
[[nodiscard]] std::string text_from_reshard(ReshardWord word);
[[nodiscard]] std::optional<ReshardWord> reshard_from_text(std::string_view text);
[[nodiscard]] std::string text_from_recompute(const RecomputeWord& word);
// "keep:OP+OP" takes the names of ops that run forward (op_kind_name), by letters and digits alone.
[[nodiscard]] std::optional<RecomputeWord> recompute_from_text(std::string_view text);
[[nodiscard]] bool is_keepable(OpKind kind);  // runs forward and makes a result
[[nodiscard]] std::string text_from_accum_sync(AccumSync sync);
[[nodiscard]] std::optional<AccumSync> accum_sync_from_text(std::string_view text);
[[nodiscard]] std::string text_from_init(InitPath init);
[[nodiscard]] std::optional<InitPath> init_from_text(std::string_view text);

struct KnobChoice {
  MeshDegrees mesh;
  UnitsWord units;
  RootWord root = RootWord::Split;
  ReshardWord reshard = ReshardWord::All;
  RecomputeWord recompute;
  std::int64_t micro_batch = 1;
  std::int32_t grad_accum = 1;
  AccumSync accum_sync = AccumSync::Every;
  std::int32_t prefetch = 1;
  InitPath init = InitPath::Simple;
  bool operator==(const KnobChoice&) const = default;
  bool operator<(const KnobChoice& other) const {  // any order; keys of maps
    const auto tied = [](const KnobChoice& c) {
      return std::tie(c.mesh.shard, c.mesh.replicate, c.mesh.tp, c.units, c.root, c.reshard, c.micro_batch, c.grad_accum,
                      c.accum_sync, c.prefetch, c.init, c.recompute);
    };
    return tied(*this) < tied(other);
  }
};

[[nodiscard]] std::vector<UnitPlan> expand_units(const UnitsWord& units, RootWord root, ReshardWord reshard,
                                                 const Segments& segments);
[[nodiscard]] std::vector<SpanPlan> expand_spans(const RecomputeWord& recompute, const Segments& segments);

// Writes the choice into a plan that already holds model, hardware, workload and kernels.
void apply(const KnobChoice& choice, const Segments& segments, Plan& plan);

// The words of a choice as a plan records them: {"units": "blocks:2", ...}.
[[nodiscard]] std::map<std::string, std::string> words_of(const KnobChoice& choice);

}  // namespace shardplan
