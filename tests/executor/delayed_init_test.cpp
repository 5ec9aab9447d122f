#include "executor/delayed_init.h"
#include "executor/counting_allocator.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "core/error.h"
#include "executor/checkpoint.h"
#include "executor/random_init.h"
#include "executor/unit_rows.h"
#include "tests/executor/ranks.h"
#include "tests/executor/small_plans.h"

namespace shardplan {
namespace {

RC_GTEST_PROP(UnitRows, CoverARangeExactlyOnce, ()) {
  FlatGroup group;
  for (int i = *rc::gen::inRange(1, 5); i > 0; --i) {
    const std::int64_t numel = *rc::gen::inRange(1, 40);
    group.slots.push_back(
        {.parameter = ParameterId(static_cast<std::int64_t>(group.slots.size())), .offset = group.numel, .numel = numel});
    group.numel += numel;
  }
  group.padded_numel = group.numel + *rc::gen::inRange(0, 8);
  const std::int64_t begin = *rc::gen::inRange<std::int64_t>(0, group.padded_numel + 1);
  const std::int64_t end = *rc::gen::inRange<std::int64_t>(begin, group.padded_numel + 1);
  std::int64_t covered = 0;
  for (const RowRange& rows : rows_in_range(group, begin, end)) {
    RC_ASSERT(rows.at == covered);
    RC_ASSERT(rows.numel > 0);
    if (rows.parameter.is_set()) {
      const ParameterSlot& slot = group.slots[rows.parameter.at()];
      RC_ASSERT(slot.offset + rows.first_element == begin + rows.at);
      RC_ASSERT(rows.first_element + rows.numel <= slot.numel);
    } else {
      RC_ASSERT(begin + rows.at >= group.numel);
    }
    covered += rows.numel;
  }
  RC_ASSERT(covered == end - begin);
}

// What a rank holds after loading, as bytes.
std::string bytes_held(const RankState& state) {
  std::string bytes;
  for (const auto& groups : state.units) {
    for (const GroupState& g : groups)
      bytes.append(static_cast<const char*>(g.sharded_param.flat.const_data_ptr()), g.sharded_param.flat.nbytes());
  }
  return bytes;
}

// Host memory of this process that no file backs.
std::int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

std::int32_t shard_index_of(const Lowered& lowered, std::int32_t rank) { return index_on_axis(shard_axis_of(lowered), rank); }

std::vector<std::string> loaded_on_ranks(const PlanChoice& choice, const std::filesystem::path& model) {
  return run_on_ranks(choice.shard * choice.replicate, [&](RankWorld& world) {
    const c10::InferenceMode no_autograd;  // as the interpreter calls
    const Plan plan = plan_of(choice);
    const Lowered lowered = lower(plan);
    RankState state = make_rank_state(plan, lowered, at::kCPU, shard_index_of(lowered, world.rank()));
    std::optional<StoredModel> stored;
    if (plan.init == InitPath::Simple || world.rank() == 0) stored.emplace(model);
    ModelLoader loader(plan, lowered, world, stored ? &*stored : nullptr);
    const std::vector<at::Tensor> pieces = {at::empty({4096}, at::kByte), at::empty({4096}, at::kByte)};  // many pieces per stretch
    for (std::size_t u = 0; u < lowered.units.size(); ++u) {
      for (GroupState& group : state.units[u]) attach(group.sharded_param);
      loader.load(UnitId(static_cast<std::int64_t>(u)), state.units[u], pieces);
    }
    return bytes_held(state);
  });
}

class LoadTest : public testing::Test {
 protected:
  void write(const SmallModel& model, DType dtype = DType::F32, std::int64_t max_file_bytes = kMaxFileBytes) {
    write_random_model(model_from_json(config_of(model), "config.json", "small"), folder_.path(),
                       {.dtype = dtype, .max_file_bytes = max_file_bytes});
  }
  TestFolder folder_;
};

TEST_F(LoadTest, EveryRankHoldsItsStretchOfTheFileOnBothPaths) {
  PlanChoice choice{.train = {"last:1"}, .shard = 3};
  write(choice.model);
  const std::vector<std::string> simple = loaded_on_ranks(choice, folder_.path());
  choice.init = InitPath::Delayed;
  EXPECT_EQ(loaded_on_ranks(choice, folder_.path()), simple);

  // Put together by unit and group, the stretches are the file's rows, then zeros.
  const Plan plan = plan_of(choice);
  const Lowered lowered = lower(plan);
  const StoredModel stored(folder_.path());
  std::size_t at = 0;
  for (const UnitLayout& unit : lowered.units) {
    for (const FlatGroup& group : unit.groups) {
      const auto stretch_bytes = static_cast<std::size_t>(group.stretch_numel) * 4;
      std::string whole;
      for (const std::string& rank : simple) whole += rank.substr(at, stretch_bytes);
      for (const ParameterSlot& slot : group.slots) {
        const auto bytes = stored.bytes(*stored.find(lowered.graph->table.parameters[slot.parameter.at()].name));
        EXPECT_EQ(std::memcmp(whole.data() + slot.offset * 4, bytes.data(), bytes.size()), 0);
      }
      EXPECT_EQ(whole.substr(static_cast<std::size_t>(group.numel) * 4).find_first_not_of('\0'), std::string::npos);
      at += stretch_bytes;
    }
  }
}

TEST_F(LoadTest, ReplicasHoldTheSameAndTiedWeightsOnce) {
  PlanChoice choice{.model = {.tied = true}, .shard = 2, .replicate = 2, .init = InitPath::Delayed};
  write(choice.model, DType::BF16, 10000);  // several files, cast to fp32 on the way
  const std::vector<std::string> held = loaded_on_ranks(choice, folder_.path());
  EXPECT_EQ(held[0], held[2]);
  EXPECT_EQ(held[1], held[3]);
  EXPECT_NE(held[0], held[1]);
}

TEST_F(LoadTest, AnonymousMemoryOfRankOneGrowsByItsStretchAndTwoPieces) {
  // 25 M elements: a stretch of 50 MB on each of two ranks, pieces of 4 MiB.
  const PlanChoice choice{.model = {.layers = 1, .hidden = 512, .mlp = 1024, .heads = 4, .kv_heads = 4, .vocab = 22000},
                          .shard = 2,
                          .init = InitPath::Delayed};
  write(choice.model);
  const auto texts = run_on_ranks(2, [&](RankWorld& world) {
    const c10::InferenceMode no_autograd;  // as the interpreter calls
    return_freed_pages();                  // as a rank does before it loads
    const Plan plan = plan_of(choice);
    const Lowered lowered = lower(plan);
    RankState state = make_rank_state(plan, lowered, at::kCPU, world.rank());
    std::optional<StoredModel> stored;
    if (world.rank() == 0) stored.emplace(folder_.path());
    ModelLoader loader(plan, lowered, world, stored ? &*stored : nullptr);
    world.barrier();  // groups are open
    const std::int64_t before = anonymous_bytes();
    std::int64_t shards = 0;
    for (std::size_t u = 0; u < lowered.units.size(); ++u) {
      for (GroupState& group : state.units[u]) {
        attach(group.sharded_param);
        shards += static_cast<std::int64_t>(group.sharded_param.flat.nbytes());
      }
      const std::vector<at::Tensor> pieces = {at::empty({kPieceBytes}, at::kByte), at::empty({kPieceBytes}, at::kByte)};
      loader.load(UnitId(static_cast<std::int64_t>(u)), state.units[u], pieces);
    }
    return fmt::format("{}", anonymous_bytes() - before - shards);
  });
  const std::int64_t over = std::stoll(texts[1]);
  EXPECT_LE(over, 2 * kPieceBytes + (2 << 20)) << "two megabytes for the library's own: half of what a third piece would take";
}

std::string check_message(const std::filesystem::path& folder, const SmallModel& model) {
  try {
    const StoredModel stored(folder);
    const auto warnings = check_stored_model(stored, parameter_table(model_from_json(config_of(model), "config.json", "small")));
    return warnings.empty() ? "fine" : "warning: " + warnings.front();
  } catch (const ConfigError& e) {
    return e.what();
  }
}

// Rewrites the checkpoint with its tensors changed.
void rewrite(const std::filesystem::path& folder, const std::function<void(std::vector<TensorDeclaration>&)>& change,
             char filler = 'x') {
  std::vector<TensorDeclaration> tensors;
  std::map<std::string, std::string> values;
  {
    const StoredModel stored(folder);
    for (const auto& [name, t] : stored.tensors()) {
      tensors.push_back({name, *t.dtype, t.shape});
      const auto bytes = stored.bytes(t);
      values[name] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  change(tensors);
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  for (const TensorDeclaration& t : tensors) {
    std::int64_t n = element_bytes(t.dtype);
    for (const std::int64_t d : t.shape) n *= d;
    std::string& value = values[t.name];
    value.resize(static_cast<std::size_t>(n), filler);
    writer.write(t.name, 0, std::as_bytes(std::span(value)));
  }
  writer.finish();
}

TEST_F(LoadTest, NamesWhatACheckpointGetsWrong) {
  const std::string together = "\n  try: check that weights and config.json belong together";
  const SmallModel model;
  write(model);
  EXPECT_EQ(check_message(folder_.path(), model), "fine");
  const std::string file = (folder_ / "model.safetensors").string();

  rewrite(folder_.path(), [](auto& t) { t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::F32, {6}}); });
  EXPECT_EQ(check_message(folder_.path(), model), "fine") << "a buffer that is recomputed";
  rewrite(folder_.path(), [](auto& t) { t.push_back({"extra.weight", DType::F32, {6}}); });
  EXPECT_EQ(check_message(folder_.path(), model),
            "the model has no place for this tensor\n  at: " + file + ", tensor 'extra.weight'" + together);
  rewrite(folder_.path(), [](auto& t) { std::erase_if(t, [](const auto& d) { return d.name == "extra.weight"; }); });

  const auto find = [](auto& t, const char* name) {
    return std::find_if(t.begin(), t.end(), [&](const auto& d) { return d.name == name; });
  };
  rewrite(folder_.path(), [&](auto& t) { find(t, "model.norm.weight")->dtype = DType::I32; });
  EXPECT_EQ(check_message(folder_.path(), model), "dtype I32 cannot be read as a weight\n  at: " + file +
                                                      ", tensor 'model.norm.weight'\n  try: convert the checkpoint to F32, BF16 or "
                                                      "F16 (quantised checkpoints: dequantise them first)");
  rewrite(folder_.path(), [&](auto& t) { find(t, "model.norm.weight")->shape = {47}; });
  EXPECT_EQ(check_message(folder_.path(), model),
            "shape is [47], the model needs [48]\n  at: " + file + ", tensor 'model.norm.weight'" + together);
  rewrite(folder_.path(), [&](auto& t) { t.erase(find(t, "model.norm.weight")); });
  EXPECT_EQ(check_message(folder_.path(), model),
            "checkpoint holds no tensor 'model.norm.weight', which the model needs\n  at: " + folder_.path().string() + together);
  rewrite(folder_.path(), [&](auto& t) { t.erase(find(t, "lm_head.weight")); });
  EXPECT_EQ(check_message(folder_.path(), model),
            "checkpoint lacks 2 tensors that the model needs, the first is 'model.norm.weight'\n  at: " + folder_.path().string() +
                together);
}

TEST_F(LoadTest, ATiedHeadThatDiffersIsAWarning) {
  const SmallModel model{.tied = true};
  write(model);
  const auto add_head = [&](auto& t) { t.push_back({"lm_head.weight", DType::F32, {model.vocab, model.hidden}}); };
  rewrite(folder_.path(), add_head);
  EXPECT_EQ(
      check_message(folder_.path(), model),
      "warning: " + (folder_ / "model.safetensors").string() +
          ", tensor 'lm_head.weight' differs from model.embed_tokens.weight, to which config.json ties it; the embedding is used");
}

TEST_F(LoadTest, WhatIsLoadedIsSavedBackToTheSameBytes) {
  PlanChoice choice{.train = {"last:1"}, .shard = 2, .replicate = 2, .init = InitPath::Delayed};
  write(choice.model);
  std::ofstream(folder_ / "tokenizer.json") << "{}";
  (void)run_on_ranks(4, [&](RankWorld& world) {
    const c10::InferenceMode no_autograd;  // as the interpreter calls
    const Plan plan = plan_of(choice);
    const Lowered lowered = lower(plan);
    RankState state = make_rank_state(plan, lowered, at::kCPU, shard_index_of(lowered, world.rank()));
    std::optional<StoredModel> stored;
    if (world.rank() == 0) stored.emplace(folder_.path());
    ModelLoader loader(plan, lowered, world, stored ? &*stored : nullptr);
    ModelSaver saver(plan, lowered, world, {.directory = folder_ / "final", .model_directory = folder_.path()});
    const std::vector<at::Tensor> pieces = {at::empty({4096}, at::kByte), at::empty({4096}, at::kByte)};
    for (std::size_t u = 0; u < lowered.units.size(); ++u) {
      for (GroupState& group : state.units[u]) attach(group.sharded_param);
      loader.load(UnitId(static_cast<std::int64_t>(u)), state.units[u], pieces);
      saver.save(UnitId(static_cast<std::int64_t>(u)), state.units[u], pieces);
    }
    saver.finish();
    return std::string();
  });
  EXPECT_EQ(text_of_file(folder_ / "final/model.safetensors"), text_of_file(folder_ / "model.safetensors"));
  EXPECT_EQ(text_of_file(folder_ / "final/config.json").find("float32"), text_of_file(folder_ / "config.json").find("float32"));
  EXPECT_EQ(text_of_file(folder_ / "final/tokenizer.json"), "{}");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "final.tmp"));
}

TEST(ReplaceDirectory, ExchangesAnOldOne) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "final");
  std::ofstream(folder / "final/old") << "old";
  std::filesystem::create_directories(folder / "final.tmp");
  std::ofstream(folder / "final.tmp/new") << "new";
  replace_directory(folder / "final.tmp", folder / "final");
  EXPECT_EQ(text_of_file(folder / "final/new"), "new");
  EXPECT_FALSE(std::filesystem::exists(folder / "final/old"));
  EXPECT_FALSE(std::filesystem::exists(folder / "final.tmp"));
}

}  // namespace
}  // namespace shardplan
