#include "planner/lowering/plan.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/json_files.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

template <class E>
struct Word {
  E value;
  std::string_view name;
};
constexpr std::array<Word<DeviceKind>, 2> kDevices{{{DeviceKind::Cuda, "cuda"}, {DeviceKind::Cpu, "cpu"}}};
constexpr std::array<Word<Target>, 1> kTargets{{{Target::Shardplan, "shardplan"}}};
constexpr std::array<Word<AccumSync>, 2> kAccumSyncs{{{AccumSync::Last, "last"}, {AccumSync::Every, "every"}}};
constexpr std::array<Word<InitPath>, 2> kInitPaths{{{InitPath::Simple, "simple"}, {InitPath::Delayed, "delayed"}}};
constexpr std::array<Word<LrSchedule>, 3> kLrSchedules{
    {{LrSchedule::Constant, "constant"}, {LrSchedule::Linear, "linear"}, {LrSchedule::Cosine, "cosine"}}};
constexpr std::array<Word<WeightDecayScope>, 2> kDecayScopes{
    {{WeightDecayScope::All, "all"}, {WeightDecayScope::Matrices, "matrices"}}};
constexpr std::array<Word<AttentionKernel>, 5> kAttentionKernels{{{AttentionKernel::CpuFlash, "cpu_flash"},
                                                                  {AttentionKernel::CudaFlash, "cuda_flash"},
                                                                  {AttentionKernel::CudaEfficient, "cuda_efficient"},
                                                                  {AttentionKernel::Math, "math"},
                                                                  {AttentionKernel::Eager, "eager"}}};
constexpr std::array<Word<LossForm>, 2> kLossForms{
    {{LossForm::TargetsGiven, "targets_given"}, {LossForm::ShiftInLoss, "shift_in_loss"}}};

template <class E, std::size_t N>
std::string_view name_in(const std::array<Word<E>, N>& words, E value) {
  for (const Word<E>& word : words)
    if (word.value == value) return word.name;
  CHECK(false, "every value of a plan has a word");
}

template <class E, std::size_t N>
E read_word(JsonReader& r, const std::string& key, const std::array<Word<E>, N>& words) {
  const std::string found = r.string(key);
  std::string known;
  for (const Word<E>& word : words) {
    if (word.name == found) return word.value;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", word.name);
  }
  r.fail(key, fmt::format("expected one of {}, found \"{}\"", known, found));
}

DType read_dtype(JsonReader& r, const std::string& key) {
  const std::string found = r.string(key);
  const std::optional<DType> dtype = dtype_from_name(found);
  if (!dtype || !is_floating(*dtype))
    r.fail(key, fmt::format("expected a floating-point type, found \"{}\"", found), "fp32, bf16 or fp16");
  return *dtype;
}

std::int32_t read_count(JsonReader& r, const std::string& key, std::int64_t least, std::int64_t most = INT32_MAX) {
  return static_cast<std::int32_t>(r.integer(key, least, most));
}

std::uint64_t read_seed(JsonReader& r, const std::string& key) {
  const Json& value = r.raw().contains(key) ? r.raw().at(key) : Json();
  if (value.is_number_unsigned()) {
    r.ignore(key);
    return value.get<std::uint64_t>();
  }
  return static_cast<std::uint64_t>(r.integer(key, 0));
}

std::optional<OpKind> op_kind_of(const std::string& name) {
  for (int k = 0; k <= static_cast<int>(OpKind::AccumulateGrad); ++k)
    if (op_kind_name(static_cast<OpKind>(k)) == name) return static_cast<OpKind>(k);
  return std::nullopt;
}

// ---- writing ----

Json json_from_workload(const WorkloadSpec& w) {
  Json precision;
  precision["stored"] = dtype_name(w.precision.stored);
  precision["compute"] = dtype_name(w.precision.compute);
  precision["reduce"] = dtype_name(w.precision.reduce);
  precision["state"] = dtype_name(w.precision.state);
  precision["buffer"] = dtype_name(w.precision.buffer);
  Json optimizer;
  optimizer["name"] = w.optimizer.name;
  optimizer["form"] = w.optimizer.form;
  optimizer["lr"] = w.optimizer.lr;
  optimizer["beta1"] = w.optimizer.beta1;
  optimizer["beta2"] = w.optimizer.beta2;
  optimizer["eps"] = w.optimizer.eps;
  optimizer["weight_decay"] = w.optimizer.weight_decay;
  optimizer["decay"] = name_in(kDecayScopes, w.optimizer.decay);
  optimizer["warmup_steps"] = w.optimizer.warmup_steps;
  optimizer["schedule"] = name_in(kLrSchedules, w.optimizer.schedule);
  optimizer["clip_norm"] = w.optimizer.clip_norm;
  Json j;
  j["seq_len"] = w.seq_len;
  j["global_batch"] = w.global_batch;
  j["train"] = w.train;
  j["freeze"] = w.freeze;
  j["precision"] = std::move(precision);
  j["optimizer"] = std::move(optimizer);
  j["steps"] = w.steps;
  j["shuffle_seed"] = w.shuffle_seed ? Json(*w.shuffle_seed) : Json(nullptr);
  j["pack"] = w.pack;
  j["seed"] = w.seed;
  return j;
}

Json json_from_kernels(const Kernels& k) {
  Json j;
  j["attention"] = name_in(kAttentionKernels, k.attention);
  j["loss"] = name_in(kLossForms, k.loss);
  j["grouped_attention"] = k.grouped_attention;
  j["padding_mask"] = k.padding_mask;
  j["mask_per_layer"] = k.mask_per_layer;
  j["threads"] = k.threads;
  return j;
}

Json json_from_unit(const UnitPlan& unit) {
  Json segments = Json::array();
  for (const SegmentId s : unit.segments) segments.push_back(s.value);
  Json j;
  j["name"] = unit.name;
  j["segments"] = std::move(segments);
  j["reshard_after_forward"] = unit.reshard_after_forward;
  return j;
}

Json json_from_span(const SpanPlan& span) {
  Json keep = Json::array();
  for (const OpKind kind : span.keep) keep.push_back(op_kind_name(kind));
  Json j;
  j["first"] = span.first.value;
  j["last"] = span.last.value;
  j["keep"] = std::move(keep);
  return j;
}

// ---- reading ----

Precision read_precision(JsonReader r) {
  Precision p;
  p.stored = read_dtype(r, "stored");
  p.compute = read_dtype(r, "compute");
  p.reduce = read_dtype(r, "reduce");
  p.state = read_dtype(r, "state");
  p.buffer = read_dtype(r, "buffer");
  r.finish();
  return p;
}

double read_number(JsonReader& r, const std::string& key, double limit) {
  const double number = r.number(key);
  if (!(number >= 0 && number < limit))
    r.fail(key, std::isfinite(limit) ? fmt::format("expected a number from 0 to below {}, found {}", limit, number)
                                     : fmt::format("expected a number of at least 0, found {}", number));
  return number;
}

OptimizerSpec read_optimizer(JsonReader r) {
  OptimizerSpec o;
  o.name = r.string("name");
  if (o.name != "adamw") r.fail("name", fmt::format("expected \"adamw\", found \"{}\"", o.name));
  o.form = r.string("form");
  if (o.form != "fused") r.fail("form", fmt::format("expected \"fused\", found \"{}\"", o.form));
  o.lr = read_number(r, "lr", INFINITY);
  o.beta1 = read_number(r, "beta1", 1);
  o.beta2 = read_number(r, "beta2", 1);
  o.eps = read_number(r, "eps", INFINITY);
  o.weight_decay = read_number(r, "weight_decay", INFINITY);
  o.decay = read_word(r, "decay", kDecayScopes);
  o.warmup_steps = read_count(r, "warmup_steps", 0);
  o.schedule = read_word(r, "schedule", kLrSchedules);
  o.clip_norm = read_number(r, "clip_norm", INFINITY);
  r.finish();
  return o;
}

WorkloadSpec read_workload(JsonReader r) {
  WorkloadSpec w;
  w.seq_len = r.integer("seq_len", 1);
  w.global_batch = r.integer("global_batch", 0);
  w.train = r.strings("train");
  w.freeze = r.strings("freeze");
  w.precision = read_precision(r.object("precision"));
  w.optimizer = read_optimizer(r.object("optimizer"));
  w.steps = read_count(r, "steps", 0);
  if (r.has("shuffle_seed")) w.shuffle_seed = r.integer("shuffle_seed", 0);
  r.ignore("shuffle_seed");
  w.pack = r.boolean("pack");
  w.seed = read_seed(r, "seed");
  r.finish();
  return w;
}

Kernels read_kernels(JsonReader r, DeviceKind device) {
  Kernels k;
  k.device = device;
  k.attention = read_word(r, "attention", kAttentionKernels);
  k.loss = read_word(r, "loss", kLossForms);
  k.grouped_attention = r.boolean("grouped_attention");
  k.padding_mask = r.boolean("padding_mask");
  k.mask_per_layer = r.boolean("mask_per_layer");
  k.threads = read_count(r, "threads", 1, kMostThreads);
  r.finish();
  return k;
}

UnitPlan read_unit(JsonReader r) {
  UnitPlan unit;
  unit.name = r.string("name");
  for (const std::int64_t s : r.integers("segments")) {
    if (s < 0 || s > INT32_MAX) r.fail("segments", fmt::format("expected segment numbers from 0, found {}", s));
    if (!unit.segments.empty() && s <= unit.segments.back().value)
      r.fail("segments", "segments of a unit stand in ascending order, each once");
    unit.segments.emplace_back(s);
  }
  if (unit.segments.empty()) r.fail("segments", "a unit holds at least one segment");
  unit.reshard_after_forward = r.boolean("reshard_after_forward");
  r.finish();
  return unit;
}

SpanPlan read_span(JsonReader r) {
  SpanPlan span;
  span.first = SegmentId(r.integer("first", 0, INT32_MAX));
  span.last = SegmentId(r.integer("last", span.first.value, INT32_MAX));
  for (const std::string& name : r.strings("keep")) {
    const std::optional<OpKind> kind = op_kind_of(name);
    if (!kind) r.fail("keep", fmt::format("\"{}\" is no operation", name), "docs/plan.md lists them");
    span.keep.push_back(*kind);
  }
  r.finish();
  return span;
}

MeshDegrees read_mesh(JsonReader r) {
  MeshDegrees mesh;
  mesh.shard = read_count(r, "shard", 1);
  mesh.replicate = read_count(r, "replicate", 1);
  mesh.tp = read_count(r, "tp", 1, 1);
  r.finish();
  return mesh;
}

}  // namespace

std::string_view target_name(Target target) { return name_in(kTargets, target); }
std::string_view accum_sync_name(AccumSync sync) { return name_in(kAccumSyncs, sync); }
std::string_view init_path_name(InitPath init) { return name_in(kInitPaths, init); }

nlohmann::ordered_json json_from_plan(const Plan& plan) {
  Json model;
  model["name"] = plan.model_name;
  model["config"] = plan.model_config;
  Json mesh;
  mesh["shard"] = plan.mesh.shard;
  mesh["replicate"] = plan.mesh.replicate;
  mesh["tp"] = plan.mesh.tp;
  Json units = Json::array();
  for (const UnitPlan& unit : plan.units) units.push_back(json_from_unit(unit));
  Json spans = Json::array();
  for (const SpanPlan& span : plan.spans) spans.push_back(json_from_span(span));
  Json words = Json::object();
  for (const auto& [knob, word] : plan.words) words[knob] = word;

  Json j;
  j["schema_version"] = kPlanFormatVersion;
  j["kind"] = "shardplan.plan";
  j["target"] = target_name(plan.target);
  j["model"] = std::move(model);
  j["hardware"] = plan.hardware_id;
  j["device"] = name_in(kDevices, plan.device);
  j["workload"] = json_from_workload(plan.workload);
  j["mesh"] = std::move(mesh);
  j["num_nodes"] = plan.num_nodes;
  j["micro_batch"] = plan.micro_batch;
  j["grad_accum"] = plan.grad_accum;
  j["accum_sync"] = accum_sync_name(plan.accum_sync);
  j["prefetch"] = plan.prefetch;
  j["init"] = init_path_name(plan.init);
  j["kernels"] = json_from_kernels(plan.kernels);
  j["units"] = std::move(units);
  j["spans"] = std::move(spans);
  j["words"] = std::move(words);
  return j;
}

Plan plan_from_json(const nlohmann::ordered_json& document, const std::string& file) {
  JsonReader r(document, file);
  if (const std::string kind = r.string("kind"); kind != "shardplan.plan")
    r.fail("kind", fmt::format("expected \"shardplan.plan\", found \"{}\"", kind), "give the file that `plan ... -o` wrote");
  if (const std::int64_t version = r.integer("schema_version"); version != kPlanFormatVersion)
    r.fail("schema_version",
           fmt::format("this program reads plans of version {}, the file has version {}", kPlanFormatVersion, version));

  Plan plan;
  plan.target = read_word(r, "target", kTargets);
  JsonReader model = r.object("model");
  plan.model_name = model.string("name");
  plan.model_config = model.object("config").raw();
  model.finish();
  plan.hardware_id = r.string("hardware");
  plan.device = read_word(r, "device", kDevices);
  plan.workload = read_workload(r.object("workload"));
  plan.mesh = read_mesh(r.object("mesh"));
  plan.num_nodes = read_count(r, "num_nodes", 1);
  plan.micro_batch = r.integer("micro_batch", 1);
  plan.grad_accum = read_count(r, "grad_accum", 1);
  plan.accum_sync = read_word(r, "accum_sync", kAccumSyncs);
  plan.prefetch = read_count(r, "prefetch", 0);
  plan.init = read_word(r, "init", kInitPaths);
  plan.kernels = read_kernels(r.object("kernels"), plan.device);
  for (const JsonReader& unit : r.array("units")) plan.units.push_back(read_unit(unit));
  for (const JsonReader& span : r.array("spans")) plan.spans.push_back(read_span(span));
  JsonReader words = r.object("words");
  for (const auto& [knob, word] : words.raw().items()) plan.words[knob] = words.string(knob);
  words.finish();
  r.finish();
  return plan;
}

Plan plan_from_file(const std::filesystem::path& file) { return plan_from_json(json_from_file(file), file.string()); }

std::string plan_hash(const Plan& plan) {
  // FNV-1a, 64 bits: enough to notice that two ranks were given different files.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : json_from_plan(plan).dump()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

ModelSpec model_of(const Plan& plan) {
  ModelSpec model = model_from_json(plan.model_config, "plan#/model/config", plan.model_name);
  require_graph(model);
  return model;
}

GraphRequest graph_request_of(const Plan& plan) {
  GraphRequest request;
  request.model = model_of(plan);
  request.table = parameter_table(request.model);
  select_trainable(request.table, request.model, plan.workload.train, plan.workload.freeze);
  request.micro_batch = plan.micro_batch;
  request.seq_len = plan.workload.seq_len;
  request.compute = plan.workload.precision.compute;
  request.kernels = plan.kernels;
  return request;
}

}  // namespace shardplan
