#include "executor/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

// What the command line may say otherwise than the plan.
struct Overrides {
  std::optional<int> steps, threads, warmup;
  std::optional<double> lr, eps, weight_decay, clip_norm;
  std::vector<double> betas;
  std::optional<std::string> schedule, decay, device, max_file_size;
  std::optional<std::int64_t> shuffle;
  bool packs = false;
};

// Numbers that the optimizer can work with: CLI's own ranges let NaN through.
CLI::Validator number_below(double least, double limit, const char* wanted) {
  return CLI::Validator(
      [least, limit, wanted](const std::string& text) {
        double number = 0;
        const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool is_good = problem == std::errc{} && end == text.data() + text.size() && number >= least && number < limit;
        return is_good ? std::string{} : fmt::format("expected {}, found '{}'", wanted, text);
      },
      "");
}
CLI::Validator from_zero() { return number_below(0, INFINITY, "a number of at least 0"); }

void add_run_flags(CLI::App& app, std::string& plan_file, RunRequest& run, Overrides& o, int& timeout_seconds) {
  app.add_option("plan", plan_file, "plan file, as `plan -o` writes it")->type_name("PLAN.json");
  app.add_option("--model", run.model_directory, "directory with config.json and safetensors weights")->type_name("DIR");
  app.add_option("--data", run.data, "training samples: .jsonl of token ids, or .bin tokens")->type_name("FILE")->expected(1, -1);
  app.add_option("--eval-data", run.eval_data, "samples for a loss after training")->type_name("FILE")->expected(1, -1);
  app.add_option("--out", run.out, "run folder")->type_name("DIR");
  app.add_option("--steps", o.steps, "optimizer steps (default: the plan's)");
  app.add_option("--device", o.device, "must be the plan's")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads", o.threads, "CPU threads of a rank (default: the plan's)")->check(CLI::Range(1, kMostThreads));
  app.add_option("--lr", o.lr, "learning rate")->check(from_zero());
  app.add_option("--betas", o.betas, "AdamW's betas")->expected(2)->check(number_below(0, 1, "a number from 0 to below 1"));
  app.add_option("--eps", o.eps, "AdamW's eps")->check(from_zero());
  app.add_option("--weight-decay", o.weight_decay, "AdamW's weight decay")->check(from_zero());
  app.add_option("--decay", o.decay, "which parameters decay")->check(CLI::IsMember({"all", "matrices"}));
  app.add_option("--warmup", o.warmup, "warm-up steps")->check(CLI::NonNegativeNumber);
  app.add_option("--schedule", o.schedule, "learning rate after warm-up")->check(CLI::IsMember({"constant", "linear", "cosine"}));
  app.add_option("--clip-norm", o.clip_norm, "clip gradients to this norm; 0: do not")->check(from_zero());
  app.add_option("--shuffle", o.shuffle, "seed of the sample order")->check(CLI::NonNegativeNumber);
  app.add_flag("--pack", o.packs, "lay rows end to end instead of padding them");
  app.add_option("--max-shard-size", o.max_file_size, "split final/ into files of this size (default 5GB)")->type_name("SIZE");
  app.add_option("--log-every", run.log_every, "steps between printed lines")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--timeout", timeout_seconds, "seconds to wait for another rank")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", run.prints_json, "print report.json's document instead of the table");
}

void apply(const Overrides& o, Plan& plan) {
  WorkloadSpec& w = plan.workload;
  const auto take = [](const auto& from, auto& to) {
    if (from) to = *from;
  };
  take(o.lr, w.optimizer.lr);
  take(o.eps, w.optimizer.eps);
  take(o.weight_decay, w.optimizer.weight_decay);
  take(o.clip_norm, w.optimizer.clip_norm);
  take(o.warmup, w.optimizer.warmup_steps);
  take(o.steps, w.steps);
  take(o.threads, plan.kernels.threads);
  if (o.shuffle) w.shuffle_seed = *o.shuffle;
  if (o.betas.size() == 2) {
    w.optimizer.beta1 = o.betas[0];
    w.optimizer.beta2 = o.betas[1];
  }
  if (o.schedule)
    w.optimizer.schedule = *o.schedule == "constant" ? LrSchedule::Constant
                           : *o.schedule == "linear" ? LrSchedule::Linear
                                                     : LrSchedule::Cosine;
  if (o.decay) w.optimizer.decay = *o.decay == "all" ? WeightDecayScope::All : WeightDecayScope::Matrices;
  w.pack = w.pack || o.packs;
}

HardwareSpec hardware_of(const Plan& plan, const std::filesystem::path& configs) {
  if (plan.device == DeviceKind::Cpu || configs.empty()) return local_cpu_hardware();
  return hardware_by_id(configs / "hardware", plan.hardware_id);
}

std::int64_t bytes_of_flag(const std::optional<std::string>& text) {
  if (!text) return kMaxFileBytes;
  const std::optional<std::int64_t> bytes = bytes_from_text(*text);
  if (!bytes || *bytes <= 0)
    throw UsageError(fmt::format("'{}' is no size", *text), "--max-shard-size", "write a number and a unit: 5GB, 500 MiB");
  return *bytes;
}

RunRequest finished(RunRequest run, const std::string& plan_file, const Overrides& o, int timeout_seconds,
                    const std::filesystem::path& configs) {
  const auto require = [](bool there, const char* what, const char* flag) {
    if (!there) throw UsageError(fmt::format("{} is missing", what), flag, "execute plan.json --model DIR --data FILE --out DIR");
  };
  require(!plan_file.empty(), "the plan file", "first argument");
  require(!run.model_directory.empty(), "the model directory", "--model");
  require(!run.data.empty(), "the training data", "--data");
  require(!run.out.empty(), "the run folder", "--out");
  run.plan = plan_from_file(plan_file);
  run.plan_hash = plan_hash(run.plan);
  apply(o, run.plan);
  run.steps = run.plan.workload.steps;
  if (run.steps < 1) throw UsageError("the plan does not say how many steps to train", "--steps", "give --steps N");
  if (o.device && (*o.device == "cpu") != (run.plan.device == DeviceKind::Cpu)) {
    throw UsageError(
        fmt::format("the plan was made for {}, not for {}", run.plan.device == DeviceKind::Cpu ? "cpu" : "cuda", *o.device),
        "--device", "plan again with --hardware local-cpu (or --hardware local) for this device");
  }
  run.timeout = std::chrono::seconds(timeout_seconds);
  run.max_file_bytes = bytes_of_flag(o.max_file_size);
  run.hardware = hardware_of(run.plan, configs);
  return run;
}

}  // namespace

ExecuteCommand parse_execute(int argc, const char* const* argv, const std::filesystem::path& configs) {
  CLI::App app("Trains by a plan and lays what was measured beside what was predicted.", "execute");
  ExecuteCommand command;
  RunRequest run;
  InitRequest init;
  Overrides overrides;
  std::string plan_file;
  int timeout_seconds = 600;
  add_run_flags(app, plan_file, run, overrides, timeout_seconds);

  CLI::App* make = app.add_subcommand("init", "writes a randomly initialised checkpoint");
  make->add_option("--model", init.model, "config.json, a directory that holds one, or an alias")->required()->type_name("MODEL");
  make->add_option("--out", init.out, "model directory to write")->required()->type_name("DIR");
  make->add_option("--seed", init.init.seed, "every value follows from it and the tensor's name")->capture_default_str();
  make->add_option("--init-std", init.std_deviation, "standard deviation of matrices (default: initializer_range)")
      ->check(CLI::NonNegativeNumber);
  make->add_option("--dtype", init.dtype, "fp32, bf16 or fp16 (default: the config's)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  std::optional<std::string> init_file_size;
  make->add_option("--max-shard-size", init_file_size, "split into files of this size (default 5GB)")->type_name("SIZE");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    command.text = app.help();
    return command;
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what(), "command line", "execute --help");
  }
  if (make->parsed()) {
    init.init.max_file_bytes = bytes_of_flag(init_file_size);
    command.init = std::move(init);
  } else {
    command.run = finished(std::move(run), plan_file, overrides, timeout_seconds, configs);
  }
  return command;
}

}  // namespace shardplan
