#include "planner/lowering/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "core/json_reader.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

Plan any_plan() {
  const TinyJob job = *any_job();
  TinyCase tiny = tiny_case(job, *any_choice());
  Plan plan = std::move(tiny.plan);
  plan.num_nodes = *rc::gen::inRange(1, 9);
  WorkloadSpec& w = plan.workload;
  w.global_batch = *rc::gen::inRange(0, 1000);
  w.freeze = *rc::gen::element(std::vector<std::string>{}, std::vector<std::string>{"layers\\.0\\.", "\"quoted\""});
  w.optimizer.lr = *rc::gen::element(1e-3, 2.5e-5, 0.1, 1.0 / 3.0);
  w.optimizer.beta2 = *rc::gen::element(0.999, 0.95);
  w.optimizer.decay = *rc::gen::element(WeightDecayScope::All, WeightDecayScope::Matrices);
  w.optimizer.schedule = *rc::gen::element(LrSchedule::Constant, LrSchedule::Linear, LrSchedule::Cosine);
  w.optimizer.warmup_steps = *rc::gen::inRange(0, 100);
  w.steps = *rc::gen::inRange(0, 100);
  if (*rc::gen::arbitrary<bool>()) w.shuffle_seed = *rc::gen::inRange<std::int64_t>(0, INT64_MAX);
  w.pack = *rc::gen::arbitrary<bool>();
  w.seed = *rc::gen::arbitrary<std::uint64_t>();
  plan.kernels.threads = *rc::gen::inRange(1, 9);
  plan.kernels.attention = *rc::gen::element(AttentionKernel::CpuFlash, AttentionKernel::CudaFlash, AttentionKernel::CudaEfficient,
                                             AttentionKernel::Math, AttentionKernel::Eager);
  return plan;
}

RC_GTEST_PROP(PlanFile, WritingThenReadingGivesAnEqualPlanAndEqualBytes, ()) {
  const Plan plan = any_plan();
  const std::string text = json_from_plan(plan).dump(2);
  const Plan again = plan_from_json(json_from_text(text, "plan.json"), "plan.json");
  RC_ASSERT(again == plan);
  RC_ASSERT(json_from_plan(again).dump(2) == text);
  RC_ASSERT(plan_hash(again) == plan_hash(plan));
}

RC_GTEST_PROP(PlanFile, PlansThatDifferHaveDifferentHashes, ()) {
  const Plan a = any_plan(), b = any_plan();
  RC_ASSERT((a == b) == (plan_hash(a) == plan_hash(b)));
}

// No key may be missing.
RC_GTEST_PROP(PlanFile, EveryKeyIsRequired, ()) {
  Json document = json_from_plan(any_plan());
  std::vector<std::string> pointers;
  const Json flat = document.flatten();
  for (const auto& [pointer, value] : flat.items()) pointers.push_back(pointer);
  std::string pointer = *rc::gen::elementOf(pointers);
  // Keys of the model's own config and of the words are free; elements of arrays are no keys.
  RC_PRE(!pointer.starts_with("/model/config") && !pointer.starts_with("/words"));
  while (!pointer.empty() && std::isdigit(static_cast<unsigned char>(pointer.back())) != 0) pointer.erase(pointer.rfind('/'));
  const std::size_t slash = pointer.rfind('/');
  const std::string key = pointer.substr(slash + 1);
  RC_PRE(key != "shuffle_seed");  // null is as good as absent
  document[Json::json_pointer(pointer.substr(0, slash))].erase(key);
  RC_ASSERT_THROWS_AS(plan_from_json(document, "plan.json"), ConfigError);
}

Json tiny_document() { return json_from_plan(tiny_case({}, {.mesh = {.shard = 2}}).plan); }

std::string message_of(const Json& document) {
  try {
    (void)plan_from_json(document, "plan.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanFile, NamesAnUnknownKeyAndTheNearestOne) {
  Json document = tiny_document();
  document["mesh"]["shards"] = 2;
  const std::string message = message_of(document);
  EXPECT_NE(message.find("shards"), std::string::npos) << message;
  EXPECT_NE(message.find("plan.json#/mesh"), std::string::npos) << message;
}

TEST(PlanFile, RefusesAnotherKindOfDocument) {
  Json document = tiny_document();
  document["kind"] = "shardplan.answer";
  EXPECT_EQ(message_of(document),
            "expected \"shardplan.plan\", found \"shardplan.answer\"\n  at: plan.json#/kind\n  try: give the file that `plan ... "
            "-o` wrote");
}

TEST(PlanFile, RefusesAnotherVersion) {
  Json document = tiny_document();
  document["schema_version"] = 2;
  EXPECT_EQ(message_of(document), "this program reads plans of version 1, the file has version 2\n  at: plan.json#/schema_version");
}

TEST(PlanFile, ListsTheWordsOfAClosedChoice) {
  Json document = tiny_document();
  document["accum_sync"] = "sometimes";
  EXPECT_EQ(message_of(document), "expected one of \"last\", \"every\", found \"sometimes\"\n  at: plan.json#/accum_sync");
}

TEST(PlanFile, RefusesATypeThatHoldsNoWeights) {
  Json document = tiny_document();
  document["workload"]["precision"]["reduce"] = "int64";
  EXPECT_EQ(
      message_of(document),
      "expected a floating-point type, found \"int64\"\n  at: plan.json#/workload/precision/reduce\n  try: fp32, bf16 or fp16");
}

TEST(PlanFile, RefusesSegmentsOutOfOrder) {
  Json document = tiny_document();
  document["units"][1]["segments"] = {2, 1};
  EXPECT_EQ(message_of(document), "segments of a unit stand in ascending order, each once\n  at: plan.json#/units/1/segments");
}

TEST(PlanFile, RefusesAnOperationThatDoesNotExist) {
  Json document = tiny_document();
  document["spans"] = {{{"first", 1}, {"last", 2}, {"keep", {"linear", "lineer"}}}};
  EXPECT_EQ(message_of(document), "\"lineer\" is no operation\n  at: plan.json#/spans/0/keep\n  try: docs/plan.md lists them");
}

TEST(PlanFile, GraphRequestAppliesTheTrainableSelection) {
  const TinyCase tiny = tiny_case({.train = {"head"}}, {});
  const GraphRequest request = graph_request_of(tiny.plan);
  EXPECT_EQ(request.table.trainable_numel(), 37 * 16);
  EXPECT_EQ(request.seq_len, tiny.plan.workload.seq_len);
  EXPECT_EQ(request.compute, tiny.plan.workload.precision.compute);
}

}  // namespace
}  // namespace shardplan
