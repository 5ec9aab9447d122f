#include "tests/executor/recorded_runs.h"

#include "core/json_reader.h"
#include "executor/launch.h"
#include "executor/random_init.h"
#include "executor/training_run.h"
#include "tests/executor/small_plans.h"

namespace shardplan {

using Json = nlohmann::ordered_json;

namespace {
const std::filesystem::path kData = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "tests/executor/data";
}

const Json& trajectories() {
  static const Json document = json_from_file(kData / "trajectories.json");
  return document;
}

const Json& case_named(const std::string& name) {
  for (const Json& c : trajectories()["cases"])
    if (c["name"] == name) return c;
  throw std::logic_error("no trajectory named " + name);
}

Plan plan_of_case(const Json& c) {
  const Json& p = c["plan"];
  PlanChoice choice;
  choice.config = c["config"];
  choice.train = {p["train"].get<std::string>()};
  choice.precision.compute = p["compute"] == "bf16" ? DType::BF16 : DType::F32;
  choice.shard = p["shard"];
  choice.replicate = p["replicate"];
  choice.batch = p["micro_batch"];
  choice.grad_accum = p["grad_accum"];
  choice.accum_sync = AccumSync::Last;
  choice.seq_len = trajectories()["seq_len"];
  choice.recompute = p["recompute"] ? Recompute::All : Recompute::None;
  choice.reshard = p["reshard"];
  choice.joint_root = true;
  Plan plan = plan_of(choice);
  OptimizerSpec& optimizer = plan.workload.optimizer;
  optimizer.lr = c["lr"];
  optimizer.weight_decay = c["weight_decay"];
  optimizer.decay = WeightDecayScope::All;
  optimizer.clip_norm = c["clip_norm"];
  optimizer.warmup_steps = c["warmup"];
  optimizer.schedule = c["schedule"] == "cosine" ? LrSchedule::Cosine : LrSchedule::Constant;
  if (!c["shuffle"].is_null()) plan.workload.shuffle_seed = c["shuffle"].get<std::int64_t>();
  plan.workload.steps = trajectories()["steps"];
  return plan;
}

std::filesystem::path data_of_case(const Json& c) { return kData / c["data"].get<std::string>(); }

void write_start_model(const Plan& plan, const std::filesystem::path& folder) {
  const RandomInit init{.seed = trajectories()["seed"], .std_deviation = trajectories()["init_std"]};
  const ModelSpec model = model_of(plan);
  const int code = run_local_ranks(1, [&](const RankPlace&) {
    write_random_model(model, folder / "model", init);
    return 0;
  });
  if (code != 0) throw std::runtime_error("the start model was not written");
}

int train(const Plan& plan, const std::filesystem::path& data, const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "model")) write_start_model(plan, folder);
  RunRequest request;
  request.plan = plan;
  request.plan_hash = plan_hash(plan);
  request.hardware = local_cpu_hardware();
  request.model_directory = folder / "model";
  request.out = folder / "run";
  request.data = {data};
  request.steps = plan.workload.steps;
  request.timeout = std::chrono::seconds(120);
  return run_local_ranks(plan.mesh.world(), [&](const RankPlace& place) { return run_rank(request, place); });
}

}  // namespace shardplan
