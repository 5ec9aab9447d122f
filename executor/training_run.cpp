#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include "executor/training_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/json_files.h"
#include "core/json_reader.h"
#include "core/units.h"
#include "executor/checkpoint.h"
#include "executor/counting_allocator.h"
#include "executor/data.h"
#include "executor/delayed_init.h"
#include "executor/device_machine.h"
#include "executor/metrics_line.h"
#include "executor/optimizer.h"
#include "executor/report.h"
#include "executor/run_folder.h"
#include "executor/run_program.h"
#include "planner/lowering/lowered_program.h"
#include "simulator/simulate.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double process_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Loading before, saving after: the one that is there answers.
class RunFiles final : public UnitFiles {
 public:
  ModelLoader* loader = nullptr;
  ModelSaver* saver = nullptr;
  void load(UnitId unit, std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) override {
    CHECK(loader != nullptr, "units are loaded in the load phase");
    loader->load(unit, groups, pieces);
  }
  void save(UnitId unit, const std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) override {
    CHECK(saver != nullptr, "units are saved in the save phase");
    saver->save(unit, groups, pieces);
  }
};

// The plan was made for a model; the directory must hold that one. Words that say how weights are stored or served may differ.
void check_same_model(const Plan& plan, const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  const nlohmann::ordered_json there = json_from_file(file);
  static const std::set<std::string> free_keys = {"architectures",        "dtype",         "torch_dtype",
                                                  "transformers_version", "_name_or_path", "use_cache",
                                                  "bos_token_id",         "eos_token_id",  "pad_token_id"};
  for (const auto& [key, planned] : plan.model_config.items()) {
    if (free_keys.contains(key) || !there.is_object() || !there.contains(key) || there[key] == planned) continue;
    throw ConfigError(fmt::format("the plan was made for {} = {}, the model has {}", key, planned.dump(), there[key].dump()),
                      fmt::format("{}#/{}", file.string(), key),
                      "plan again for this model, or name the directory of the planned one");
  }
}

const LoweredProgram* find_phase(const Lowered& lowered, Phase phase) {
  for (const LoweredProgram& p : lowered.phases) {
    if (p.program.phase == phase) return &p;
  }
  return nullptr;
}

// Flops of forward and backward, without what is computed twice.
double model_flops(const StepProgram& program) {
  double flops = 0;
  for (const Task& task : program.tasks) {
    if (task.kind != TaskKind::Forward && task.kind != TaskKind::Backward) continue;
    for (const KernelWork& kernel : task.kernels) flops += static_cast<double>(kernel.flops);
  }
  return flops;
}

// Sequences of one step of one data rank, kept for as long as the step runs.
struct StepBatch {
  std::vector<std::int64_t> ids, targets;
  StepInput input;
};

class TrainingRun {
 public:
  TrainingRun(const RunRequest& request, const RankPlace& place);
  int run();
  [[nodiscard]] std::int64_t predicted_peak_bytes() const;

 private:
  void agree();
  void load();
  bool train();  // false when stopped
  void evaluate();
  void save();
  int report();
  void enter(Phase phase, std::int64_t step);
  void keep(const StepResult& result);
  [[nodiscard]] StepBatch batch_of(const Samples& samples, SampleOrder& order, std::int64_t step, std::int32_t micro_steps) const;
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }

  const RunRequest& request_;
  const Plan& plan_;
  RankWorld world_;
  Lowered lowered_;
  std::map<Phase, Timeline> predicted_;
  std::map<Phase, PhaseComparison> kept_;
  std::optional<Samples> samples_, eval_samples_;
  StepShape shape_;
  std::int64_t data_rank_ = 0;
  DeviceMachine device_;
  RunFiles files_;
  RankMachine machine_;
  std::optional<RankState> state_;
  std::optional<RunFolder> folder_;
  RunStatus status_;
};

DataRequest data_request(const RunRequest& request, const std::vector<std::filesystem::path>& files) {
  const ModelSpec model = model_of(request.plan);
  return {.files = files,
          .seq_len = request.plan.workload.seq_len,
          .vocab_size = model.vocab_size,
          .pad_token_id = std::max<std::int64_t>(0, model.pad_token_id),
          .pack = request.plan.workload.pack};
}

TrainingRun::TrainingRun(const RunRequest& request, const RankPlace& place)
    : request_(request), plan_(request.plan), world_(place, request.timeout) {
  agree();
  if (is_first()) {
    folder_.emplace(request.out);
    const bool is_forked = place.launcher == "execute";
    status_ = {.plan_hash = request.plan_hash,
               .steps = request.steps,
               .process_id = is_forked ? ::getppid() : ::getpid(),
               .ranks = place.world};
    folder_->set_status(status_);
  }
  check_same_model(plan_, request.model_directory);
  samples_.emplace(data_request(request, request.data));
  world_.agree("the data", fmt::format("{} samples with hash {:016x}", samples_->count(), samples_->fingerprint()),
               "give all ranks the same --data files");
  if (!request.eval_data.empty()) eval_samples_.emplace(data_request(request, request.eval_data));

  lowered_ = lower(plan_);
  for (const LoweredProgram& p : lowered_.phases) {
    SimulateOptions options;
    options.synchronous = plan_.device == DeviceKind::Cpu;
    options.ranks_per_node = std::max(1, plan_.mesh.world() / plan_.num_nodes);
    predicted_[p.program.phase] = simulate(p.program, request.hardware, options);
  }
  const std::vector<MeshAxis>& mesh = lowered_.phases.front().program.mesh;
  std::int32_t shard_index = 0;
  for (const MeshAxis& axis : mesh) {
    const std::int32_t index = index_on_axis(axis, place.rank);
    if (axis.name == "shard") shard_index = index;
    if (axis.name == "replicate") data_rank_ += index * plan_.mesh.shard;
  }
  data_rank_ += shard_index;
  shape_ = {
      .data_ranks = plan_.mesh.shard * plan_.mesh.replicate, .micro_batch = plan_.micro_batch, .grad_accum = plan_.grad_accum};
  device_ = plan_.device == DeviceKind::Cpu ? open_cpu_machine(world_, mesh) : open_cuda_machine(world_, mesh);
  machine_ = {
      .collectives = device_.collectives.get(), .streams = device_.streams.get(), .memory = device_.memory.get(), .files = &files_};
  state_.emplace(make_rank_state(plan_, lowered_, device_.device, shard_index));
}

void TrainingRun::agree() {
  world_.agree("the plan", plan_hash(plan_), "give all ranks the same plan file and the same flags");
  world_.agree("the run",
               fmt::format("{} steps, save in files of {} bytes, evaluation {}", request_.steps, request_.max_file_bytes,
                           request_.eval_data.empty() ? "off" : "on"),
               "give all ranks the same flags");
}

void TrainingRun::enter(Phase phase, std::int64_t step) {
  status_.phase = phase;
  status_.step = step;
  if (folder_) folder_->set_status(status_);
}

// The first run of a phase stays for the report, unless a later one is the first to differ from the prediction.
void TrainingRun::keep(const StepResult& result) {
  const Phase phase = result.measured.phase;
  const auto found = kept_.find(phase);
  if (found != kept_.end() &&
      (first_difference(found->second.predicted, found->second.measured) || !first_difference(predicted_[phase], result.measured)))
    return;
  PhaseComparison comparison{
      .predicted = predicted_[phase], .measured = result.measured, .workspace_peak_bytes = result.workspace_peak_bytes};
  comparison.measured.rank = comparison.predicted.rank = world_.rank();
  kept_[phase] = std::move(comparison);
}

void TrainingRun::load() {
  enter(Phase::Load, 0);
  std::optional<StoredModel> stored;
  if (plan_.init == InitPath::Simple || is_first()) {
    stored.emplace(request_.model_directory);
    for (const std::string& warning : check_stored_model(*stored, lowered_.graph->table)) {
      if (is_first()) fmt::print(stderr, "warning: {}\n", warning);
    }
  }
  ModelLoader loader(plan_, lowered_, world_, stored ? &*stored : nullptr);
  files_.loader = &loader;
  ProgramRunner runner(plan_, lowered_, Phase::Load, *state_);
  keep(runner.run(machine_, {}));
  files_.loader = nullptr;
}

StepBatch TrainingRun::batch_of(const Samples& samples, SampleOrder& order, std::int64_t step, std::int32_t micro_steps) const {
  const auto s = static_cast<std::size_t>(samples.seq_len());
  const auto rows = static_cast<std::size_t>(shape_.micro_batch);
  StepBatch batch;
  batch.ids.resize(static_cast<std::size_t>(micro_steps) * rows * s);
  batch.targets.resize(batch.ids.size());
  StepShape shape = shape_;
  shape.grad_accum = micro_steps;
  std::size_t at = 0;
  for (std::int32_t a = 0; a < micro_steps; ++a) {
    for (const std::int64_t k : samples_of(order, shape, step, a, data_rank_)) {
      samples.copy(k, std::span(batch.ids).subspan(at, s), std::span(batch.targets).subspan(at, s));
      at += s;
    }
    const std::size_t first = at - rows * s;
    batch.input.micro_batches.push_back(
        {.ids = std::span(batch.ids).subspan(first, rows * s), .targets = std::span(batch.targets).subspan(first, rows * s)});
  }
  return batch;
}

bool TrainingRun::train() {
  if (plan_.device == DeviceKind::Cpu) recycle_freed_pages();
  ProgramRunner step1(plan_, lowered_, Phase::Step1, *state_), step2(plan_, lowered_, Phase::Step2, *state_);
  const double flops = model_flops(find_phase(lowered_, Phase::Step2)->program);
  const auto peak = request_.hardware.peak_flops_per_second.find(plan_.workload.precision.compute);
  SampleOrder order(samples_->count(), plan_.workload.shuffle_seed);
  const double tokens = static_cast<double>(plan_.grad_accum * plan_.micro_batch * plan_.workload.seq_len);
  for (std::int64_t t = 0; t < request_.steps; ++t) {
    if (t < 2) enter(t == 0 ? Phase::Step1 : Phase::Step2, t);
    const Clock::time_point start = Clock::now();
    const double cpu_start = process_cpu_seconds();
    StepBatch batch = batch_of(*samples_, order, t, plan_.grad_accum);
    batch.input.num_targets = std::max<std::int64_t>(1, targets_of_step(*samples_, order, shape_, t));
    batch.input.learning_rate = learning_rate(plan_.workload.optimizer, t, request_.steps);
    batch.input.log_memory = t == 1 && is_first();  // one step is recorded change by change
    const StepResult result = (t == 0 ? step1 : step2).run(machine_, batch.input);
    keep(result);
    std::array<double, 2> sums = {result.loss_sum, stop_requested() ? 1.0 : 0.0};
    world_.all_sum(sums);
    if (folder_) {
      StepMetrics m{.step = t + 1,
                    .loss = sums[0] / static_cast<double>(batch.input.num_targets),
                    .grad_norm = result.grad_norm,
                    .learning_rate = batch.input.learning_rate,
                    .targets = batch.input.num_targets};
      m.seconds = seconds_since(start);
      m.cpu_seconds = process_cpu_seconds() - cpu_start;
      m.tokens_per_second_per_gpu = tokens / m.seconds;
      m.peak_requested_bytes = result.measured.peak_requested_bytes;
      folder_->add_metrics(m);
      if (t == 0 || (t + 1) % request_.log_every == 0 || t + 1 == request_.steps) {
        const MetricsLine line{.step = m.step,
                               .loss = m.loss,
                               .grad_norm = m.grad_norm,
                               .memory_bytes = m.peak_requested_bytes,
                               .capacity_bytes = request_.hardware.usable_memory_bytes,
                               .predicted_bytes = predicted_[result.measured.phase].peak_requested_bytes,
                               .tokens_per_second = m.tokens_per_second_per_gpu,
                               .flops_per_second = flops / m.seconds,
                               .peak_flops_per_second = peak == request_.hardware.peak_flops_per_second.end() ? 0 : peak->second};
        fmt::print(stderr, "{}\n", text_from_metrics(line));
        enter(result.measured.phase, t + 1);
      }
    }
    if (sums[1] > 0) {
      status_.step = t + 1;
      return false;
    }
  }
  return true;
}

// Every sample once; places of the last batch that no sample is left for hold no targets.
void TrainingRun::evaluate() {
  if (!eval_samples_) return;
  enter(Phase::Eval, request_.steps);
  ProgramRunner runner(plan_, lowered_, Phase::Eval, *state_);
  SampleOrder order(eval_samples_->count(), std::nullopt);
  const std::int64_t per_step = shape_.data_ranks * shape_.micro_batch;
  const auto s = static_cast<std::size_t>(eval_samples_->seq_len());
  std::array<double, 2> sums = {0, 0};  // loss, targets
  for (std::int64_t t = 0; t * per_step < eval_samples_->count(); ++t) {
    StepBatch batch = batch_of(*eval_samples_, order, t, 1);
    for (std::int64_t b = 0; b < shape_.micro_batch; ++b) {
      if (t * per_step + data_rank_ * shape_.micro_batch + b < eval_samples_->count()) continue;
      std::fill_n(batch.targets.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(b) * s), s, kNoTarget);
    }
    const StepResult result = runner.run(machine_, batch.input);
    keep(result);
    sums[0] += result.loss_sum;
    sums[1] += static_cast<double>(batch.targets.size()) -
               static_cast<double>(std::count(batch.targets.begin(), batch.targets.end(), kNoTarget));
  }
  world_.all_sum(sums);
  if (!folder_) return;
  const double loss = sums[0] / std::max(1.0, sums[1]);
  folder_->add_evaluation(request_.steps, loss, static_cast<std::int64_t>(sums[1]));
  fmt::print(stderr, "validate step: {}  loss: {:.5f}\n", request_.steps, loss);
}

void TrainingRun::save() {
  enter(Phase::Save, request_.steps);
  ModelSaver saver(plan_, lowered_, world_,
                   {.directory = request_.out / "final",
                    .model_directory = request_.model_directory,
                    .max_file_bytes = request_.max_file_bytes});
  files_.saver = &saver;
  ProgramRunner runner(plan_, lowered_, Phase::Save, *state_);
  keep(runner.run(machine_, {}));
  files_.saver = nullptr;
  saver.finish();
}

int TrainingRun::report() {
  nlohmann::ordered_json mine = nlohmann::ordered_json::array();
  for (const auto& [phase, comparison] : kept_) {
    Timeline measured = comparison.measured;
    measured.memory.clear();
    mine.push_back({{"timeline", json_from_timeline(measured)}, {"workspace", comparison.workspace_peak_bytes}});
  }
  const std::vector<std::string> texts = world_.gather_texts("report", mine.dump());
  double differs = 0;
  if (folder_) {
    Report report{.plan_hash = request_.plan_hash, .device = plan_.device, .ranks = world_.size(), .phases = {}};
    for (const auto& [phase, own] : kept_) {
      for (std::size_t r = 0; r < texts.size(); ++r) {
        for (const nlohmann::ordered_json& entry : nlohmann::ordered_json::parse(texts[r])) {
          PhaseComparison c{.predicted = own.predicted,
                            .measured = timeline_from_json(entry["timeline"], fmt::format("report of rank {}", r)),
                            .workspace_peak_bytes = entry["workspace"].get<std::int64_t>()};
          if (c.measured.phase != phase) continue;
          c.predicted.rank = static_cast<std::int32_t>(r);
          report.phases.push_back(std::move(c));
        }
      }
    }
    const std::string document = json_from_report(report).dump(2) + "\n";
    folder_->write_report(document);
    const auto step = kept_.contains(Phase::Step2) ? kept_.find(Phase::Step2) : kept_.find(Phase::Step1);
    if (step != kept_.end()) folder_->write_timeline(step->second.measured);
    status_.state = "done";
    folder_->set_status(status_);
    fmt::print("{}", request_.prints_json ? document : text_from_report(report));
    std::fflush(stdout);
    differs = report.equal() ? 0 : 1;
  }
  world_.all_sum({&differs, 1});
  return static_cast<int>(differs > 0 ? ExitCode::ToleranceExceeded : ExitCode::Ok);
}

std::int64_t TrainingRun::predicted_peak_bytes() const {
  std::int64_t highest = 0;
  for (const auto& [phase, timeline] : predicted_) highest = std::max(highest, timeline.peak_requested_bytes);
  return highest;
}

int TrainingRun::run() {
  load();
  if (!train()) {
    if (folder_) {
      status_.state = "stopped";
      status_.message = fmt::format("a signal asked for the end after step {}; nothing was saved", status_.step);
      folder_->set_status(status_);
      fmt::print(stderr, "stopped: {}\n", status_.message);
    }
    world_.barrier();
    return kStoppedBySignal;
  }
  evaluate();
  save();
  return report();
}

}  // namespace

int run_rank(const RunRequest& request, const RankPlace& place) {
  at::set_num_threads(request.plan.kernels.threads);
  if (request.plan.device == DeviceKind::Cpu) {
    install_counting_allocator();
    return_freed_pages();
  }
  std::int64_t predicted_bytes = 0;
  try {
    TrainingRun run(request, place);
    predicted_bytes = run.predicted_peak_bytes();
    return run.run();
  } catch (const c10::OutOfMemoryError& e) {
    throw Error(
        ExitCode::OutOfDeviceMemory,
        fmt::format("out of device memory, {} were predicted: {}", text_from_bytes(predicted_bytes), e.what_without_backtrace()),
        fmt::format("rank {}", place.rank), "plan again with a smaller --memory-limit, or free the device of other processes");
  } catch (const c10::Error& e) {
    throw DeviceError(fmt::format("LibTorch refused: {}", e.what_without_backtrace()), fmt::format("rank {}", place.rank));
  }
}

}  // namespace shardplan
