#include "planner/command/request_from_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/local_hardware.h"
#include "core/units.h"
#include "planner/search/evaluate.h"
#include "planner/search/knob_space.h"

namespace shardplan {
namespace {

[[noreturn]] void refuse(const CommandLine& line, const std::string& flag, const std::string& problem,
                         const std::string& remedy = "") {
  const Given& given = line.given.at(flag);
  if (given.from_file) throw ConfigError(problem, given.where, remedy);
  throw UsageError(problem, given.where, remedy);
}

std::int64_t integer_from(const CommandLine& line, const std::string& flag, std::int64_t least, std::int64_t most) {
  const std::string text = *line.value(flag);
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size())
    refuse(line, flag, fmt::format("expected a whole number, found '{}'", text));
  if (number < least || number > most) {
    const bool states_both = most != INT64_MAX && most != INT32_MAX;
    refuse(line, flag,
           states_both      ? fmt::format("expected {} to {}, found {}", least, most, number)
           : number < least ? fmt::format("expected at least {}, found {}", least, number)
                            : fmt::format("expected at most {}, found {}", most, number));
  }
  return number;
}

double number_from(const CommandLine& line, const std::string& flag, const std::string& text, double least, double below) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size() || !std::isfinite(number)) {
    refuse(line, flag, fmt::format("expected a number, found '{}'", text));
  }
  if (number < least || number >= below) {
    refuse(line, flag,
           std::isfinite(below) ? fmt::format("expected a number from {} to below {}, found {}", least, below, text)
                                : fmt::format("expected a number of at least {}, found {}", least, text));
  }
  return number;
}

double number_or(const CommandLine& line, const std::string& flag, double otherwise, double least, double below = INFINITY) {
  const auto text = line.value(flag);
  return text ? number_from(line, flag, *text, least, below) : otherwise;
}

// A word out of a list; the nearest one is offered.
std::size_t word_from(const CommandLine& line, const std::string& flag, const std::vector<std::string>& words) {
  const std::string text = *line.value(flag);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == text) return i;
  }
  const std::string near = nearest(text, words);
  refuse(line, flag, fmt::format("unknown word '{}'", text),
         near.empty() ? fmt::format("{}", fmt::join(words, ", ")) : fmt::format("{} (words: {})", near, fmt::join(words, ", ")));
}

template <class Word, class Parse>
std::optional<Word> knob_word(const CommandLine& line, const std::string& flag, Parse parse, const std::string& words) {
  const auto text = line.value(flag);
  if (!text) return std::nullopt;
  const std::optional<Word> word = parse(*text);
  if (!word) refuse(line, flag, fmt::format("unknown word '{}'", *text), words);
  return word;
}

void read_dtype(const CommandLine& line, const std::string& flag, DType& dtype) {
  if (!line.has(flag)) return;
  const DType dtypes[] = {DType::F32, DType::BF16};
  dtype = dtypes[word_from(line, flag, {"fp32", "bf16"})];
}

OptimizerSpec optimizer_from(const CommandLine& line) {
  OptimizerSpec optimizer;
  if (line.has("optimizer")) word_from(line, "optimizer", {"adamw"});
  if (line.has("optimizer-form")) word_from(line, "optimizer-form", {"fused"});
  optimizer.lr = number_or(line, "lr", optimizer.lr, 0);
  if (const auto text = line.value("betas")) {
    const std::size_t comma = text->find(',');
    if (comma == std::string::npos)
      refuse(line, "betas", fmt::format("expected two numbers, found '{}'", *text), "--betas 0.9,0.999");
    optimizer.beta1 = number_from(line, "betas", text->substr(0, comma), 0, 1);
    optimizer.beta2 = number_from(line, "betas", text->substr(comma + 1), 0, 1);
  }
  optimizer.eps = number_or(line, "eps", optimizer.eps, 0);
  optimizer.weight_decay = number_or(line, "weight-decay", optimizer.weight_decay, 0);
  if (line.has("decay"))
    optimizer.decay = word_from(line, "decay", {"all", "matrices"}) == 0 ? WeightDecayScope::All : WeightDecayScope::Matrices;
  optimizer.warmup_steps = static_cast<std::int32_t>(count_from_flag(line, "warmup", 0, 0, INT32_MAX));
  if (line.has("schedule")) {
    const LrSchedule schedules[] = {LrSchedule::Constant, LrSchedule::Linear, LrSchedule::Cosine};
    optimizer.schedule = schedules[word_from(line, "schedule", {"constant", "linear", "cosine"})];
  }
  optimizer.clip_norm = number_or(line, "clip-norm", 0, 0);
  return optimizer;
}

// "head+last:4" and repeated flags; a regex: is never split at '+'.
std::vector<std::string> train_words(const Given& given) {
  std::vector<std::string> words;
  for (std::string_view rest : given.values) {
    while (!rest.empty()) {
      const std::size_t plus = rest.starts_with("regex:") ? std::string_view::npos : rest.find('+');
      words.emplace_back(rest.substr(0, plus));
      rest = plus == std::string_view::npos ? std::string_view{} : rest.substr(plus + 1);
    }
  }
  return words;
}

WorkloadSpec workload_from(const CommandLine& line) {
  WorkloadSpec workload;
  workload.seq_len = count_from_flag(line, "seq-len", workload.seq_len, 1, 1 << 24);
  workload.global_batch = count_from_flag(line, "global-batch", 0, 1, INT32_MAX);
  if (line.has("train")) workload.train = train_words(line.given.at("train"));
  if (line.has("freeze")) workload.freeze = line.given.at("freeze").values;
  read_dtype(line, "stored-dtype", workload.precision.stored);
  read_dtype(line, "compute-dtype", workload.precision.compute);
  read_dtype(line, "reduce-dtype", workload.precision.reduce);
  read_dtype(line, "state-dtype", workload.precision.state);
  workload.optimizer = optimizer_from(line);
  workload.steps = static_cast<std::int32_t>(count_from_flag(line, "steps", 0, 0, INT32_MAX));
  if (line.has("shuffle")) workload.shuffle_seed = count_from_flag(line, "shuffle", 0, 0, INT64_MAX);
  workload.pack = line.has("pack");
  workload.seed = static_cast<std::uint64_t>(count_from_flag(line, "seed", static_cast<std::int64_t>(workload.seed), 0, INT64_MAX));
  return workload;
}

FixedKnobs knobs_from(const CommandLine& line) {
  FixedKnobs knobs;
  if (line.has("shard-degree")) knobs.shard_degree = static_cast<std::int32_t>(integer_from(line, "shard-degree", 1, INT32_MAX));
  if (line.has("replicate-degree"))
    knobs.replicate_degree = static_cast<std::int32_t>(integer_from(line, "replicate-degree", 1, INT32_MAX));
  knobs.units = knob_word<UnitsWord>(line, "units", units_from_text, "blocks, blocks:K, halves, whole");
  knobs.root = knob_word<RootWord>(line, "root", root_from_text, "joint, split");
  knobs.reshard = knob_word<ReshardWord>(line, "reshard-after-forward", reshard_from_text, "all, none, all-but-last");
  knobs.recompute = knob_word<RecomputeWord>(
      line, "recompute", recompute_from_text,
      "none, full, blocks:K (K >= 2), halves:attention, halves:mlp, keep:OP+OP with ops such as attention_flash, linear, silu");
  if (line.has("micro-batch")) knobs.micro_batch = integer_from(line, "micro-batch", 1, INT32_MAX);
  if (line.has("grad-accum")) knobs.grad_accum = static_cast<std::int32_t>(integer_from(line, "grad-accum", 1, 4096));
  knobs.accum_sync = knob_word<AccumSync>(line, "accum-sync", accum_sync_from_text, "last, every");
  if (line.has("prefetch")) knobs.prefetch = static_cast<std::int32_t>(integer_from(line, "prefetch", 0, 2));
  knobs.init = knob_word<InitPath>(line, "init", init_from_text, "simple, delayed");
  return knobs;
}

// Rules across flags.
void check_together(const CommandLine& line, const PlanRequest& request) {
  const FixedKnobs& knobs = request.knobs;
  if (request.nodes > request.gpus)
    refuse(line, "nodes", fmt::format("{} nodes for {} GPUs", request.nodes, request.gpus),
           fmt::format("--nodes {} or fewer", request.gpus));
  if (request.gpus % request.nodes != 0) {
    refuse(line, "nodes", fmt::format("{} GPUs do not spread evenly over {} nodes", request.gpus, request.nodes),
           "as many GPUs on every node");
  }
  if (request.ranks_per_node() > request.hardware.devices_per_node) {
    refuse(line, line.has("nodes") ? "nodes" : "gpus",
           fmt::format("{} GPUs on {} node{}, but a node of {} has {}", request.gpus, request.nodes, request.nodes == 1 ? "" : "s",
                       request.hardware.id, request.hardware.devices_per_node),
           fmt::format("--nodes {}", (request.gpus + request.hardware.devices_per_node - 1) / request.hardware.devices_per_node));
  }
  const auto divides = [&](const char* flag, std::int64_t degree) {
    if (request.gpus % degree != 0)
      refuse(line, flag, fmt::format("{} does not divide the {} GPUs of the job", degree, request.gpus));
  };
  if (knobs.shard_degree) divides("shard-degree", *knobs.shard_degree);
  if (knobs.replicate_degree) divides("replicate-degree", *knobs.replicate_degree);
  if (knobs.shard_degree && knobs.replicate_degree && *knobs.shard_degree * *knobs.replicate_degree != request.gpus) {
    refuse(line, "replicate-degree",
           fmt::format("shard degree {} x replicate degree {} is {}, the job has {} GPUs", *knobs.shard_degree,
                       *knobs.replicate_degree, *knobs.shard_degree * *knobs.replicate_degree, request.gpus),
           fmt::format("--replicate-degree {}, or leave one of them to the search", request.gpus / *knobs.shard_degree));
  }
  if (knobs.units && knobs.units->form == UnitsWord::Form::Whole && knobs.root) {
    refuse(line, "root", "--units whole puts everything in one unit; --root would mean nothing",
           "leave --root out, or --units blocks");
  }
  if (knobs.units && knobs.units->blocks > request.model.num_layers) {
    refuse(line, "units", fmt::format("{} blocks in a unit, the model has {}", knobs.units->blocks, request.model.num_layers),
           "--units whole");
  }
  if (knobs.recompute && knobs.recompute->every > request.model.num_layers) {
    refuse(line, "recompute", fmt::format("every {}th block, the model has {}", knobs.recompute->every, request.model.num_layers),
           "--recompute none");
  }
  if (knobs.accum_sync && knobs.grad_accum.value_or(1) == 1 && request.workload.global_batch == 0) {
    refuse(line, "accum-sync", "gradients are reduced once in a step of one micro-step; --accum-sync would mean nothing",
           "--grad-accum N or --global-batch G beside it");
  }
  const std::int64_t global = request.workload.global_batch;
  const std::int64_t per_rank = knobs.micro_batch.value_or(1) * knobs.grad_accum.value_or(1);
  if (global > 0 && global % (per_rank * request.gpus) != 0) {
    const std::int64_t step = per_rank * request.gpus;
    refuse(line, "global-batch",
           fmt::format("{} sequences do not divide into {} ranks{}", global, request.gpus,
                       per_rank == 1 ? "" : fmt::format(" x {} sequences", per_rank)),
           fmt::format("--global-batch {}", std::max<std::int64_t>(step, global / step * step)));
  }
  if (knobs.micro_batch.value_or(1) > most_micro_batch(request)) {
    refuse(line, "micro-batch",
           fmt::format("{} sequences of {} tokens are more than {} tokens in a micro-step", *knobs.micro_batch,
                       request.workload.seq_len, kMostTokensOfMicroStep),
           fmt::format("--micro-batch {} or less", most_micro_batch(request)));
  }
  if (global > 0 && batch_shapes(request).empty()) {
    refuse(line, "global-batch",
           fmt::format("{} sequences for each of {} ranks are no micro-batch times at most {} micro-steps", global / request.gpus,
                       request.gpus, kMostMicroSteps),
           "a number with more divisors, or fewer sequences");
  }
  if (request.workload.seq_len > request.model.max_position_embeddings && request.model.max_position_embeddings > 0) {
    const std::string problem = fmt::format("{} tokens, but {} has positions for {}", request.workload.seq_len, request.model.name,
                                            request.model.max_position_embeddings);
    const std::string remedy = fmt::format("--seq-len {} or less", request.model.max_position_embeddings);
    if (!line.has("seq-len")) throw UsageError(problem, "--seq-len", remedy);
    refuse(line, "seq-len", problem, remedy);
  }
}

}  // namespace

std::int64_t count_from_flag(const CommandLine& line, const std::string& flag, std::int64_t otherwise, std::int64_t least,
                             std::int64_t most) {
  return line.has(flag) ? integer_from(line, flag, least, most) : otherwise;
}

std::optional<std::int64_t> bytes_from_flag(const CommandLine& line, const std::string& flag) {
  const auto text = line.value(flag);
  if (!text) return std::nullopt;
  const auto bytes = bytes_from_text(*text);
  if (!bytes)
    refuse(line, flag, fmt::format("expected bytes with their unit, found '{}'", *text), "\"40 GiB\" (2^30) or \"40 GB\" (10^9)");
  if (*bytes <= 0) refuse(line, flag, fmt::format("expected more than nothing, found '{}'", *text));
  return bytes;
}

HardwareSpec hardware_from_flags(const CommandLine& line, const std::filesystem::path& configs, const std::string& otherwise) {
  if (line.has("gpu") && line.has("hardware")) {
    refuse(line, "hardware", "--gpu and --hardware both name the machine", "give one of them");
  }
  if (const auto gpu = line.value("gpu")) return hardware_by_id(configs / "hardware", *gpu);
  const std::string named = line.value("hardware").value_or(otherwise);
  if (named == "local-cpu") return local_cpu_hardware();
  if (named == "local") return local_hardware(configs / "hardware");
  std::error_code unreadable;  // a name too long to be a file's is no file
  if (std::filesystem::exists(named, unreadable)) return hardware_from_file(named);
  return hardware_by_id(configs / "hardware", named);
}

namespace {

// keep:OP of an op that no layer runs would be recompute full under another name.
void check_kept_ops(const CommandLine& line, const PlanRequest& request) {
  if (!request.knobs.recompute || request.knobs.recompute->keep.empty()) return;
  const Evaluator evaluator(request);
  const OpGraph& graph = evaluator.graph();
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < graph.num_forward_ops; ++i) {
    const Op& op = graph.op(OpId(i));
    if (is_keepable(op.kind) && evaluator.segments().all[op.segment.at()].layer >= 0) names.emplace_back(op_kind_name(op.kind));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const OpKind kind : request.knobs.recompute->keep) {
    const std::string name(op_kind_name(kind));
    if (std::binary_search(names.begin(), names.end(), name)) continue;
    const std::string near = nearest(name, names);
    if (!near.empty()) std::stable_partition(names.begin(), names.end(), [&](const std::string& other) { return other == near; });
    refuse(line, "recompute", fmt::format("no layer of {} has the op {}", request.model.name, name),
           fmt::format("keep:OP+OP with {}", fmt::join(names, ", ")));
  }
}

}  // namespace

PlanRequest request_from_flags(const CommandLine& line, const std::filesystem::path& configs) {
  PlanRequest request;
  if (line.positionals.size() > 1) {
    throw UsageError(fmt::format("one model at a time, found '{}' and '{}'", line.positionals[0], line.positionals[1]), "",
                     "values of flags with blanks need quotes");
  }
  if (!line.positionals.empty() && line.has("model")) {
    throw UsageError(fmt::format("two models: '{}' and --model {}", line.positionals[0], *line.value("model")), "",
                     "give one of them");
  }
  const std::optional<std::string> model = line.positionals.empty() ? line.value("model") : std::optional(line.positionals[0]);
  if (!model)
    throw UsageError("no model is given", "", "plan --model llama3-8b --gpus 4; plan models lists the models known by name");
  request.hardware = hardware_from_flags(line, configs, "h100-80g");
  request.model = find_model(*model, configs / "models").spec;
  require_graph(request.model);
  request.gpus = static_cast<std::int32_t>(count_from_flag(line, "gpus", 1, 1, 65536));
  const std::int32_t fewest = (request.gpus + request.hardware.devices_per_node - 1) / request.hardware.devices_per_node;
  request.nodes = static_cast<std::int32_t>(count_from_flag(line, "nodes", fewest, 1, 65536));
  request.workload = workload_from(line);
  request.memory_limit_bytes = bytes_from_flag(line, "memory-limit");
  request.host_memory_limit_bytes = bytes_from_flag(line, "host-memory-limit");
  if (line.has("objective")) {
    const Objective objectives[] = {Objective::Throughput, Objective::Memory};
    request.objective = objectives[word_from(line, "objective", {"throughput", "memory"})];
  }
  request.knobs = knobs_from(line);
  check_together(line, request);
  check_kept_ops(line, request);
  return request;
}

}  // namespace shardplan
