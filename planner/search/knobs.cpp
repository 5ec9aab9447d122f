#include "planner/search/knobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/names.h"

namespace shardplan {
namespace {

struct RootRow {
  RootWord word;
  std::string_view text;
};
constexpr std::array<RootRow, 2> kRoots{{{RootWord::Joint, "joint"}, {RootWord::Split, "split"}}};

struct ReshardRow {
  ReshardWord word;
  std::string_view text;
};
constexpr std::array<ReshardRow, 3> kReshards{
    {{ReshardWord::All, "all"}, {ReshardWord::None, "none"}, {ReshardWord::AllButLast, "all-but-last"}}};

// The K of "blocks:K"; nothing for another word or a K below `least`.
std::optional<std::int32_t> count_after(std::string_view text, std::string_view prefix, std::int32_t least) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = text.substr(prefix.size());
  std::int32_t count = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (problem != std::errc{} || end != digits.data() + digits.size() || count < least) return std::nullopt;
  return count;
}

// AccumulateGrad is the last enumerator of the closed list.
constexpr int kNumOpKinds = static_cast<int>(OpKind::AccumulateGrad) + 1;

std::vector<OpKind> keepable_ops() {
  std::vector<OpKind> result;
  for (int k = 0; k < kNumOpKinds; ++k) {
    if (is_keepable(static_cast<OpKind>(k))) result.push_back(static_cast<OpKind>(k));
  }
  return result;
}

}  // namespace

bool is_keepable(OpKind kind) {
  const std::string_view name = op_kind_name(kind);
  return !is_view(kind) && kind != OpKind::AccumulateGrad && kind != OpKind::LossSeed && !name.ends_with("ackward");
}

std::string text_from_units(const UnitsWord& word) {
  switch (word.form) {
    case UnitsWord::Form::Blocks:
      return word.blocks == 1 ? "blocks" : fmt::format("blocks:{}", word.blocks);
    case UnitsWord::Form::Halves:
      return "halves";
    case UnitsWord::Form::Whole:
      return "whole";
  }
  return {};
}

std::optional<UnitsWord> units_from_text(std::string_view text) {
  if (text == "blocks") return UnitsWord{};
  if (text == "halves") return UnitsWord{.form = UnitsWord::Form::Halves};
  if (text == "whole") return UnitsWord{.form = UnitsWord::Form::Whole};
  if (const auto k = count_after(text, "blocks:", 1)) return UnitsWord{.form = UnitsWord::Form::Blocks, .blocks = *k};
  return std::nullopt;
}

std::string text_from_root(RootWord word) {
  for (const RootRow& row : kRoots) {
    if (row.word == word) return std::string(row.text);
  }
  return {};
}

std::optional<RootWord> root_from_text(std::string_view text) {
  for (const RootRow& row : kRoots) {
    if (row.text == text) return row.word;
  }
  return std::nullopt;
}

std::string text_from_reshard(ReshardWord word) {
  for (const ReshardRow& row : kReshards) {
    if (row.word == word) return std::string(row.text);
  }
  return {};
}

std::optional<ReshardWord> reshard_from_text(std::string_view text) {
  for (const ReshardRow& row : kReshards) {
    if (row.text == text) return row.word;
  }
  return std::nullopt;
}

std::string text_from_recompute(const RecomputeWord& word) {
  switch (word.form) {
    case RecomputeWord::Form::None:
      return "none";
    case RecomputeWord::Form::Full:
      return "full";
    case RecomputeWord::Form::Blocks:
      return fmt::format("blocks:{}", word.every);
    case RecomputeWord::Form::AttentionHalves:
      return "halves:attention";
    case RecomputeWord::Form::MlpHalves:
      return "halves:mlp";
    case RecomputeWord::Form::Keep:
      break;
  }
  std::string text = "keep:";
  for (std::size_t i = 0; i < word.keep.size(); ++i) text += (i ? "+" : "") + std::string(op_kind_name(word.keep[i]));
  return text;
}

std::optional<RecomputeWord> recompute_from_text(std::string_view text) {
  using Form = RecomputeWord::Form;
  if (text == "none") return RecomputeWord{};
  if (text == "full" || text == "blocks" || text == "blocks:1") return RecomputeWord{.form = Form::Full};
  if (text == "halves:attention") return RecomputeWord{.form = Form::AttentionHalves};
  if (text == "halves:mlp") return RecomputeWord{.form = Form::MlpHalves};
  if (const auto k = count_after(text, "blocks:", 2)) return RecomputeWord{.form = Form::Blocks, .every = *k};
  if (!text.starts_with("keep:")) return std::nullopt;
  RecomputeWord word{.form = Form::Keep};
  const std::vector<OpKind> keepable = keepable_ops();
  for (std::string_view rest = text.substr(5);;) {
    const std::size_t plus = rest.find('+');
    const std::string name = letters_and_digits(rest.substr(0, plus));
    const auto op =
        std::find_if(keepable.begin(), keepable.end(), [&](OpKind k) { return letters_and_digits(op_kind_name(k)) == name; });
    if (op == keepable.end()) return std::nullopt;
    word.keep.push_back(*op);
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  std::sort(word.keep.begin(), word.keep.end());
  word.keep.erase(std::unique(word.keep.begin(), word.keep.end()), word.keep.end());
  return word;
}

std::string text_from_accum_sync(AccumSync sync) { return std::string(accum_sync_name(sync)); }

std::optional<AccumSync> accum_sync_from_text(std::string_view text) {
  if (text == "last") return AccumSync::Last;
  if (text == "every") return AccumSync::Every;
  return std::nullopt;
}

std::string text_from_init(InitPath init) { return std::string(init_path_name(init)); }

std::optional<InitPath> init_from_text(std::string_view text) {
  if (text == "simple") return InitPath::Simple;
  if (text == "delayed") return InitPath::Delayed;
  return std::nullopt;
}

std::vector<UnitPlan> expand_units(const UnitsWord& units, RootWord root, ReshardWord reshard, const Segments& segments) {
  UnitPlan embed{.name = "embed"}, head{.name = "head"};
  std::vector<UnitPlan> blocks;
  std::int32_t last_group = -1;
  bool seen_layer = false;
  for (std::size_t i = 0; i < segments.all.size(); ++i) {
    const Segment& segment = segments.all[i];
    if (segment.layer < 0) {
      (seen_layer ? head : embed).segments.push_back(SegmentId(static_cast<std::int64_t>(i)));
      continue;
    }
    seen_layer = true;
    const bool halves = units.form == UnitsWord::Form::Halves;
    const std::int32_t group = halves ? static_cast<std::int32_t>(i) : segment.layer / units.blocks;
    if (group != last_group) {
      blocks.push_back({.name = halves ? segment.name : fmt::format("blocks.{}", segment.layer)});
      last_group = group;
    }
    blocks.back().segments.push_back(SegmentId(static_cast<std::int64_t>(i)));
    if (!halves && units.blocks > 1) {
      const std::int32_t first = segment.layer / units.blocks * units.blocks;
      blocks.back().name =
          first == segment.layer ? fmt::format("blocks.{}", first) : fmt::format("blocks.{}-{}", first, segment.layer);
    }
  }

  std::vector<UnitPlan> result;
  const auto add = [&](UnitPlan unit) {
    if (!unit.segments.empty()) result.push_back(std::move(unit));
  };
  if (units.form == UnitsWord::Form::Whole) {
    UnitPlan whole{.name = "model"};
    for (std::size_t i = 0; i < segments.all.size(); ++i) whole.segments.push_back(SegmentId(static_cast<std::int64_t>(i)));
    add(std::move(whole));
  } else if (root == RootWord::Joint) {
    UnitPlan joint{.name = "root", .segments = embed.segments};
    joint.segments.insert(joint.segments.end(), head.segments.begin(), head.segments.end());
    add(std::move(joint));
    for (UnitPlan& block : blocks) add(std::move(block));
  } else {
    add(std::move(embed));
    for (UnitPlan& block : blocks) add(std::move(block));
    add(std::move(head));
  }

  // The unit that holds the last block's last segment.
  SegmentId last_block;
  for (std::size_t i = 0; i < segments.all.size(); ++i) {
    if (segments.all[i].layer >= 0) last_block = SegmentId(static_cast<std::int64_t>(i));
  }
  for (UnitPlan& unit : result) {
    const bool holds_last = std::find(unit.segments.begin(), unit.segments.end(), last_block) != unit.segments.end();
    unit.reshard_after_forward = reshard == ReshardWord::All || (reshard == ReshardWord::AllButLast && !holds_last);
  }
  return result;
}

std::vector<SpanPlan> expand_spans(const RecomputeWord& recompute, const Segments& segments) {
  using Form = RecomputeWord::Form;
  std::vector<SpanPlan> spans;
  const auto id = [](std::size_t i) { return SegmentId(static_cast<std::int64_t>(i)); };
  for (std::size_t i = 0; i < segments.all.size(); ++i) {
    const Segment& segment = segments.all[i];
    if (segment.layer < 0) continue;
    switch (recompute.form) {
      case Form::None:
        break;
      case Form::AttentionHalves:
        if (segment.name.ends_with(".attention")) spans.push_back({.first = id(i), .last = id(i)});
        break;
      case Form::MlpHalves:
        if (segment.name.ends_with(".mlp")) spans.push_back({.first = id(i), .last = id(i)});
        break;
      case Form::Full:
      case Form::Blocks:
      case Form::Keep:
        if (recompute.form == Form::Blocks && segment.layer % recompute.every != 0) break;
        if (!spans.empty() && segments.all[spans.back().last.at()].layer == segment.layer) {
          spans.back().last = id(i);
        } else {
          spans.push_back({.first = id(i), .last = id(i), .keep = recompute.keep});
        }
        break;
    }
  }
  return spans;
}

std::map<std::string, std::string> words_of(const KnobChoice& choice) {
  std::map<std::string, std::string> words;
  words["shard_degree"] = std::to_string(choice.mesh.shard);
  words["replicate_degree"] = std::to_string(choice.mesh.replicate);
  words["units"] = text_from_units(choice.units);
  if (choice.units.form != UnitsWord::Form::Whole) words["root"] = text_from_root(choice.root);
  words["reshard_after_forward"] = text_from_reshard(choice.reshard);
  words["recompute"] = text_from_recompute(choice.recompute);
  words["micro_batch"] = std::to_string(choice.micro_batch);
  words["grad_accum"] = std::to_string(choice.grad_accum);
  if (choice.grad_accum > 1) words["accum_sync"] = text_from_accum_sync(choice.accum_sync);
  words["prefetch"] = std::to_string(choice.prefetch);
  words["init"] = text_from_init(choice.init);
  return words;
}

void apply(const KnobChoice& choice, const Segments& segments, Plan& plan) {
  plan.mesh = choice.mesh;
  plan.units = expand_units(choice.units, choice.root, choice.reshard, segments);
  plan.spans = expand_spans(choice.recompute, segments);
  plan.micro_batch = choice.micro_batch;
  plan.grad_accum = choice.grad_accum;
  plan.accum_sync = choice.accum_sync;
  plan.prefetch = choice.prefetch;
  plan.init = choice.init;
  plan.words = words_of(choice);
}

}  // namespace shardplan
