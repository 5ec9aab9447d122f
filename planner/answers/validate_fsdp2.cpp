// Cases of kind fsdp2_memory: the program of stock FSDP2, read at the places where PyTorch's memory tracker was read.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/units.h"
#include "planner/answers/validate.h"
#include "planner/graph/op_graph.h"
#include "planner/graph/segments.h"
#include "planner/graph/stock_kernels.h"
#include "planner/lowering/schedules/fsdp2.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kRounding = 512;  // of every storage, as the tracker does
constexpr std::string_view kCompared[] = {"Sharded Param", "Buffer", "Sharded Grad", "OptState", "Inputs"};

struct Setup {
  GraphRequest request;
  Fsdp2Switches switches;
};

std::optional<DType> dtype_or_none(JsonReader& reader, const std::string& key) {
  const std::string name = reader.string_or(key, "");
  if (name.empty()) return std::nullopt;
  const std::optional<DType> dtype = dtype_from_name(name);
  if (!dtype || !is_floating(*dtype)) reader.fail(key, fmt::format("the dtype \"{}\" is not modelled", name));
  return dtype;
}

// "default" (not passed), true, false, or a number of ranks.
ReshardAfterForward reshard_from(JsonReader& reader, const std::string& key, ReshardAfterForward::Kind otherwise) {
  using Kind = ReshardAfterForward::Kind;
  if (!reader.has(key)) return {.kind = otherwise};
  const Json& value = reader.raw().at(key);
  reader.ignore(key);
  if (value.is_string() && value.get<std::string>() == "default") return {.kind = otherwise};
  if (value.is_boolean()) return {.kind = value.get<bool>() ? Kind::Free : Kind::Keep};
  if (value.is_number_integer()) return {.kind = Kind::Smaller, .degree = value.get<std::int32_t>()};
  reader.fail(key, "is neither \"default\", true, false nor a number of ranks");
}

void read_wrap(JsonReader wrap, Fsdp2Switches& switches) {
  const std::string policy = wrap.string("policy");
  if (policy == "blocks")
    switches.wrap = Fsdp2Wrap::Blocks;
  else if (policy == "block_pairs")
    switches.layers_per_unit = 2;
  else if (policy == "root")
    switches.wrap = Fsdp2Wrap::Root;
  else if (policy == "embed_blocks_head")
    switches.wrap = Fsdp2Wrap::EmbedBlocksHead;
  else
    wrap.fail("policy", fmt::format("the policy \"{}\" is not modelled", policy));
  switches.inner = reshard_from(wrap, "reshard_after_forward", ReshardAfterForward::Kind::Free);
  switches.root = reshard_from(wrap, "root_reshard_after_forward", ReshardAfterForward::Kind::Keep);
  switches.head = reshard_from(wrap, "head_reshard_after_forward", ReshardAfterForward::Kind::Free);
}

void read_checkpointing(JsonReader spec, std::int64_t num_layers, Fsdp2Switches& switches) {
  const std::string mode = spec.string("mode");
  if (mode == "none") return;
  switches.checkpointed.assign(static_cast<std::size_t>(num_layers), mode == "hf");
  if (mode == "hf") return;
  for (const std::int64_t block : spec.integers("blocks")) switches.checkpointed.at(static_cast<std::size_t>(block)) = true;
}

void read_optimizer(JsonReader spec, Fsdp2Switches& switches) {
  const std::string kind = spec.string("kind"), form = spec.string("form");
  if (kind == "adamw" && form == "fused")
    switches.optimizer = StockOptimizer::FusedAdamW;
  else if (kind == "adamw" && form == "foreach")
    switches.optimizer = StockOptimizer::ForeachAdamW;
  else if (kind == "adamw" && form == "loop")
    switches.optimizer = StockOptimizer::LoopAdamW;
  else if (kind == "sgd" && form == "foreach")
    switches.optimizer = spec.number("momentum") == 0 ? StockOptimizer::ForeachSgd : StockOptimizer::ForeachSgdMomentum;
  else
    spec.fail("kind", fmt::format("the optimizer {} in its {} form is not modelled", kind, form));
}

void mark_trainable(JsonReader trainable, const ModelSpec& model, ParameterTable& table) {
  const std::string mode = trainable.string("mode");
  if (mode == "last_layers")
    select_trainable(table, model, {fmt::format("last:{}", trainable.integer("layers", 1))}, {});
  else if (mode == "all" || mode == "head" || mode == "norms")
    select_trainable(table, model, {mode}, {});
  else
    trainable.fail("mode", fmt::format("training of \"{}\" is not modelled", mode));
}

Setup setup_from(JsonReader reader, const std::filesystem::path& document) {
  Setup setup;
  JsonReader named = reader.object("model");
  GraphRequest& request = setup.request;
  Fsdp2Switches& switches = setup.switches;
  switches.adds_in_place = false;  // the tracker's tensors are fake
  request.model = model_from_json(named.object("hf_config").raw(), document.string(), named.string("name"));
  require_graph(request.model);
  request.table = parameter_table(request.model);
  request.micro_batch = reader.integer("micro_batch", 1);
  request.seq_len = reader.integer("seq_len", 1);
  mark_trainable(reader.object("trainable"), request.model, request.table);

  JsonReader dtypes = reader.object("dtypes");
  switches.stored = dtype_or_none(dtypes, "stored").value();
  switches.param_dtype = dtype_or_none(dtypes, "param");
  switches.reduce_dtype = dtype_or_none(dtypes, "reduce");
  request.compute = switches.param_dtype.value_or(switches.stored);
  request.kernels = stock_kernels(request.model, {.compute = request.compute,
                                                  .is_eager = reader.string("attention") == "eager",
                                                  .has_padding_mask = reader.string("attention_mask") == "padding",
                                                  .seq_len = request.seq_len});
  JsonReader mesh = reader.object("mesh");
  switches.mesh = {.shard = static_cast<std::int32_t>(mesh.integer("shard", 1)),
                   .replicate = static_cast<std::int32_t>(mesh.integer("replicate", 1))};
  switches.shard_rank = static_cast<std::int32_t>(reader.integer("rank", 0)) % switches.mesh.shard;
  read_wrap(reader.object("wrap"), switches);
  read_checkpointing(reader.object("checkpointing"), request.model.num_layers, switches);
  read_optimizer(reader.object("optimizer"), switches);
  JsonReader accumulation = reader.object("accumulation");
  switches.micro_steps = static_cast<std::int32_t>(accumulation.integer("micro_steps", 1));
  switches.reduces_every_micro_step = accumulation.boolean("sync_every_micro_step");
  JsonReader loss = reader.object("loss");
  if (const std::string kind = loss.string("kind"); kind == "chunked")
    switches.chunk_tokens = loss.integer("tokens", 1);
  else if (kind != "hf")
    loss.fail("kind", fmt::format("the loss \"{}\" is not modelled", kind));
  switches.keeps_outputs = reader.boolean("outputs_kept");
  return setup;
}

// Levels of one program, every buffer rounded up. What kernels allocate inside themselves is not seen by the tracker.
class Reading {
 public:
  Reading(const Setup& setup, const Fsdp2Program& step) : setup_(setup), step_(step), program_(step.lowered.program) {
    for (const BufferId id : program_.resident) change(id, +1);
    peak_ = level_;
  }

  // The tracker loses sight of a padded shard at the first forward, which makes it anew when tensors have no address, and counts
  // the new one as an activation.
  void relabel_padded_shards() {
    for (const BufferId id : program_.resident) {
      const BufferRole& role = step_.lowered.roles[id.at()];
      if (role.use != BufferUse::ShardedParam || !is_padded(role.parameter)) continue;
      const std::int64_t bytes = round_up(program_.buffers[id.at()].bytes, kRounding);
      level_[MemoryCategory::ShardedParam] -= bytes;
      level_[MemoryCategory::Activation] += bytes;
    }
    peak_ = level_;
  }

  [[nodiscard]] Json now() const { return snapshot(level_); }

  // Walks to the end of a task and gives the highest level on the way, that of the start included.
  Json peak_until(TaskId end) {
    peak_ = level_;
    for (; next_ <= end.value; ++next_) {
      for (const Effect& effect : program_.tasks[static_cast<std::size_t>(next_)].effects) {
        change(effect.buffer, effect.kind == EffectKind::Allocate ? +1 : -1);
        if (level_.total() > peak_.total()) peak_ = level_;
      }
    }
    return snapshot(peak_);
  }

 private:
  [[nodiscard]] bool is_padded(ParameterId parameter) const {
    const std::int64_t rows = setup_.request.table.parameters[parameter.at()].shape.front(), degree = setup_.switches.mesh.shard;
    return rows < round_up(rows, degree) / degree * (setup_.switches.shard_rank + 1);
  }

  void change(BufferId id, std::int64_t sign) {
    if (step_.lowered.roles[id.at()].use == BufferUse::Scratch) return;
    const Buffer& buffer = program_.buffers[id.at()];
    level_[buffer.category] += sign * round_up(buffer.bytes, kRounding);
  }

  static Json snapshot(const CategoryBytes& level) {
    Json made = {{"total_bytes", level.total()}, {"by_category_bytes", Json::object()}};
    for (int c = 0; c < kNumMemoryCategories; ++c) {
      const auto category = static_cast<MemoryCategory>(c);
      if (level[category] != 0) made["by_category_bytes"][std::string(category_name(category))] = level[category];
    }
    return made;
  }

  const Setup& setup_;
  const Fsdp2Program& step_;
  const StepProgram& program_;
  CategoryBytes level_, peak_;
  std::int32_t next_ = 0;
};

void keep_highest(Json& peaks, const char* phase, Json peak, std::int32_t micro_step) {
  peak["micro_step"] = micro_step < 0 ? Json(nullptr) : Json(micro_step);
  if (!peaks.contains(phase) || peak["total_bytes"] > peaks[phase]["total_bytes"]) peaks[phase] = std::move(peak);
}

Json read_step(const Setup& setup, const Fsdp2Program& step) {
  Reading reading(setup, step);
  reading.relabel_padded_shards();
  Json made = {{"after_forward", Json::array()}, {"after_backward", Json::array()}}, peaks = Json::object();
  for (std::size_t m = 0; m < step.after_forward.size(); ++m) {
    keep_highest(peaks, "forward", reading.peak_until(step.after_forward[m]), static_cast<std::int32_t>(m));
    made["after_forward"].push_back(reading.now());
    keep_highest(peaks, "backward", reading.peak_until(step.after_backward[m]), static_cast<std::int32_t>(m));
    made["after_backward"].push_back(reading.now());
  }
  keep_highest(peaks, "optimizer", reading.peak_until(step.after_optimizer), -1);
  made["after_optimizer"] = reading.now();
  (void)reading.peak_until(step.after_zero_grad);
  made["after_zero_grad"] = reading.now();
  std::string highest;
  for (const auto& [phase, peak] : peaks.items())
    if (highest.empty() || peak["total_bytes"] > peaks[highest]["total_bytes"]) highest = phase;
  made["phase_peaks"] = peaks;
  made["peak_phase"] = highest;
  made["peak_bytes"] = peaks[highest]["total_bytes"];
  return made;
}

class Comparison {
 public:
  void snapshot(const std::string& figure, const Json& predicted, const Json& truth) {
    ValidationRow& row = value(figure, predicted.at("total_bytes"), truth.at("total_bytes"));
    for (const std::string_view category : kCompared) {
      const std::string key(category);
      const auto of = [&](const Json& s) { return s.at("by_category_bytes").value(key, std::int64_t{0}); };
      if (of(predicted) != of(truth))
        row.differs.push_back(fmt::format("{} {}: {}, not {}", figure, key, of(predicted), of(truth)));
    }
  }

  ValidationRow& value(const std::string& figure, const Json& predicted, const Json& truth) {
    ValidationRow& row = rows.emplace_back();
    row.figure = figure;
    row.predicted = predicted.get<double>();
    row.truth = truth.get<double>();
    return row;
  }

  std::vector<ValidationRow> rows;
};

void compare_step(const std::string& name, const Json& predicted, const Json& truth, Comparison& comparison) {
  for (const char* point : {"after_forward", "after_backward"})
    for (std::size_t m = 0; m < truth.at(point).size(); ++m)
      comparison.snapshot(fmt::format("{} {} {}", name, point, m), predicted.at(point).at(m), truth.at(point).at(m));
  for (const char* point : {"after_optimizer", "after_zero_grad"})
    comparison.snapshot(fmt::format("{} {}", name, point), predicted.at(point), truth.at(point));
  for (const auto& [phase, peak] : truth.at("phase_peaks").items())
    comparison.value(fmt::format("{} peak of {}", name, phase), predicted.at("phase_peaks").at(phase).at("total_bytes"),
                     peak.at("total_bytes"));
  ValidationRow& row = comparison.value(fmt::format("{} peak", name), predicted.at("peak_bytes"), truth.at("peak_bytes"));
  if (predicted.at("peak_phase") != truth.at("peak_phase"))
    row.differs.push_back(fmt::format("{} peak_phase: {}, not {}", name, predicted.at("peak_phase").get<std::string>(),
                                      truth.at("peak_phase").get<std::string>()));
}

}  // namespace

CasePrediction predict_fsdp2_memory(const Json& truth_case, const std::filesystem::path& document) {
  JsonReader reader(truth_case, document.string());
  const Setup setup = setup_from(reader.object("setup"), document);
  const OpGraph graph = build_graph(setup.request);
  const Segments segments = segments_of(graph);

  CasePrediction made;
  Json& prediction = made.prediction;
  const Fsdp2Program first = lower_fsdp2_step(graph, segments, setup.switches, Phase::Step1);
  const Fsdp2Program second = lower_fsdp2_step(graph, segments, setup.switches, Phase::Step2);
  prediction["after_model_creation"] = Reading(setup, first).now();
  prediction["steps"] = Json::array({read_step(setup, first), read_step(setup, second)});

  const Json& expected = reader.object("expected").raw();
  Comparison comparison;
  comparison.snapshot("after_model_creation", prediction["after_model_creation"], expected.at("after_model_creation"));
  for (std::size_t s = 0; s < 2; ++s)
    compare_step(fmt::format("step {}", s + 1), prediction["steps"][s], expected.at("steps").at(s), comparison);
  made.rows = std::move(comparison.rows);
  return made;
}

}  // namespace shardplan
