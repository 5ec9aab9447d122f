// Words of the decisions: what they mean for units and spans, and that they survive being written.
#include <gtest/gtest.h>

#include "planner/search/knob_space.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

Segments segments_of_layers(std::int64_t layers) { return tiny_case({.model = {.layers = layers}}, {}).segments; }

std::string names(const std::vector<UnitPlan>& units) {
  std::string text;
  for (const UnitPlan& unit : units) text += (text.empty() ? "" : " ") + unit.name + (unit.reshard_after_forward ? "" : "!");
  return text;
}

std::string spans_text(const std::vector<SpanPlan>& spans, const Segments& segments) {
  std::string text;
  for (const SpanPlan& span : spans)
    text += (text.empty() ? "" : " ") + segments.all[span.first.at()].name + ".." + segments.all[span.last.at()].name;
  return text;
}

TEST(KnobWords, SurviveBeingWritten) {
  for (const char* text : {"blocks", "blocks:3", "halves", "whole"}) EXPECT_EQ(text_from_units(*units_from_text(text)), text);
  for (const char* text : {"none", "full", "blocks:2", "halves:attention", "halves:mlp", "keep:linear+attention_flash"})
    EXPECT_EQ(text_from_recompute(*recompute_from_text(text)), text);
  // Any order and case of the ops is one word.
  EXPECT_EQ(recompute_from_text("keep:AttentionFlash+Linear+linear"), recompute_from_text("keep:linear+attention_flash"));
  for (const char* text : {"all", "none", "all-but-last"}) EXPECT_EQ(text_from_reshard(*reshard_from_text(text)), text);
  for (const char* text : {"joint", "split"}) EXPECT_EQ(text_from_root(*root_from_text(text)), text);
}

TEST(KnobWords, OthersAreNoWords) {
  for (const char* text : {"", "block", "blocks:", "blocks:0", "blocks:-1", "blocks:2x", "blocks: 2", "Whole"})
    EXPECT_FALSE(units_from_text(text)) << text;
  for (const char* text :
       {"", "some", "blocks:0", "keep:", "keep:Nothing", "keep:View", "halves", "keep:Linear+", "keep:mul+silu_backward"})
    EXPECT_FALSE(recompute_from_text(text)) << text;
}

// Every segment is in exactly one unit, whatever the words.
TEST(KnobWords, UnitsCoverEverySegmentOnce) {
  const Segments segments = segments_of_layers(3);
  for (const char* units : {"blocks", "blocks:2", "blocks:3", "halves", "whole"}) {
    for (const RootWord root : {RootWord::Joint, RootWord::Split}) {
      std::vector<int> seen(segments.all.size());
      for (const UnitPlan& unit : expand_units(*units_from_text(units), root, ReshardWord::All, segments))
        for (const SegmentId s : unit.segments) ++seen[s.at()];
      EXPECT_EQ(seen, std::vector<int>(segments.all.size(), 1)) << units;
    }
  }
}

TEST(KnobWords, NameTheirUnits) {
  const Segments segments = segments_of_layers(3);
  const auto units = [&](const char* word, RootWord root, ReshardWord reshard) {
    return names(expand_units(*units_from_text(word), root, reshard, segments));
  };
  EXPECT_EQ(units("blocks", RootWord::Split, ReshardWord::All), "embed blocks.0 blocks.1 blocks.2 head");
  EXPECT_EQ(units("blocks:2", RootWord::Joint, ReshardWord::All), "root blocks.0-1 blocks.2");
  EXPECT_EQ(units("blocks", RootWord::Split, ReshardWord::AllButLast), "embed blocks.0 blocks.1 blocks.2! head");
  EXPECT_EQ(units("whole", RootWord::Split, ReshardWord::None), "model!");
  EXPECT_EQ(units("halves", RootWord::Split, ReshardWord::AllButLast),
            "embed layers.0.attention layers.0.mlp layers.1.attention layers.1.mlp layers.2.attention layers.2.mlp! head");
}

TEST(KnobWords, NameTheirSpans) {
  const Segments segments = segments_of_layers(3);
  const auto spans = [&](const char* word) { return spans_text(expand_spans(*recompute_from_text(word), segments), segments); };
  EXPECT_EQ(spans("none"), "");
  EXPECT_EQ(spans("full"), "layers.0.attention..layers.0.mlp layers.1.attention..layers.1.mlp layers.2.attention..layers.2.mlp");
  EXPECT_EQ(spans("blocks:2"), "layers.0.attention..layers.0.mlp layers.2.attention..layers.2.mlp");
  EXPECT_EQ(spans("halves:mlp"), "layers.0.mlp..layers.0.mlp layers.1.mlp..layers.1.mlp layers.2.mlp..layers.2.mlp");
}

// GPUs 8 = shard x replicate; a global batch of 24 on 8 ranks leaves 3 sequences a rank: 1 x 3 or 3 x 1.
TEST(KnobSpace, MeshAndBatchMultiplyToWhatIsAsked) {
  PlanRequest request;
  request.model = model_from_json(tiny_config({}), "tiny", "tiny");
  request.gpus = 8;
  request.workload.global_batch = 24;
  for (const MeshDegrees& mesh : knob_space(request).meshes) EXPECT_EQ(mesh.world(), 8);
  EXPECT_EQ(knob_space(request).meshes.size(), 4u);
  for (const BatchShape& shape : batch_shapes(request)) EXPECT_EQ(shape.micro_batch * shape.grad_accum * 8, 24);
  const std::vector<BatchShape> expected{{1, 3, AccumSync::Every}, {1, 3, AccumSync::Last}, {3, 1, AccumSync::Every}};
  EXPECT_EQ(batch_shapes(request), expected);
}

// However much fits: thousands of micro-batches of a tiny model on a large device would each cost the search a graph.
TEST(KnobSpace, AFreeMicroBatchIsSearchedUpTo256AndAnyCanBeGiven) {
  PlanRequest request;
  request.workload.seq_len = 16;
  EXPECT_EQ(most_micro_batch(request), kMostFreeMicroBatch);
  EXPECT_TRUE(shapes_with_micro_batch(request, kMostFreeMicroBatch + 1).empty());
  request.knobs.micro_batch = kMostFreeMicroBatch + 1;
  EXPECT_EQ(shapes_with_micro_batch(request, kMostFreeMicroBatch + 1).size(), 1u);
  request.knobs.micro_batch.reset();
  request.workload.seq_len = kMostTokensOfMicroStep / 2;
  EXPECT_EQ(most_micro_batch(request), 2);
}

}  // namespace
}  // namespace shardplan
