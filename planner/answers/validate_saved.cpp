// Truth kind "saved_activations": what autograd keeps for one decoder block, or for final norm, head and loss, of a stock
// transformers model on CUDA.
#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/units.h"
#include "planner/answers/validate.h"
#include "planner/graph/op_graph.h"
#include "planner/graph/passes/cut_part.h"
#include "planner/graph/passes/differentiate.h"
#include "planner/graph/passes/prune.h"
#include "planner/graph/saved_values.h"
#include "planner/graph/segments.h"
#include "planner/graph/stock_kernels.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct Setup {
  ModelSpec model;
  bool is_block = true;  // else final norm, head and loss
  std::int64_t block = 0;
  DType dtype = DType::BF16;
  bool is_eager = false;
  bool has_padding_mask = false;
  std::string train;
  std::int64_t last_layers = 0;
  std::int64_t micro_batch = 1, seq_len = 1;
  bool input_requires_grad = false;
};

Setup setup_from(JsonReader reader, const std::filesystem::path& document) {
  Setup setup;
  JsonReader model = reader.object("model");
  setup.model = model_from_json(model.object("hf_config").raw(), document.string(), model.string("name"));
  require_graph(setup.model);
  const std::string part = reader.string("part");
  setup.is_block = part == "block";
  if (!setup.is_block && part != "head_loss") reader.fail("part", fmt::format("the part \"{}\" is not modelled", part));
  if (setup.is_block) setup.block = reader.integer("block_index", 0, setup.model.num_layers - 1);
  const std::string dtype = reader.object("dtypes").string("stored");
  const std::optional<DType> known = dtype_from_name(dtype);
  if (!known || !is_floating(*known)) reader.fail("dtypes", fmt::format("the dtype \"{}\" is not modelled", dtype));
  setup.dtype = *known;
  const std::string attention = reader.string("attention");
  setup.is_eager = attention == "eager";
  if (!setup.is_eager && attention != "sdpa") reader.fail("attention", fmt::format("attention \"{}\" is not modelled", attention));
  setup.has_padding_mask = reader.string("attention_mask") == "padding";
  JsonReader trainable = reader.object("trainable");
  setup.train = trainable.string("mode");
  setup.last_layers = trainable.integer_or("layers", 0);
  setup.micro_batch = reader.integer("micro_batch", 1);
  setup.seq_len = reader.integer("seq_len", 1);
  setup.input_requires_grad = reader.boolean("input_requires_grad");
  return setup;
}

void mark_trainable(const Setup& setup, ParameterTable& table) {
  if (setup.train == "none") {
    for (Parameter& p : table.parameters) p.trainable = false;
  } else if (setup.train == "last_layers") {
    select_trainable(table, setup.model, {fmt::format("last:{}", setup.last_layers)}, {});
  } else if (setup.train == "all" || setup.train == "head" || setup.train == "norms") {
    select_trainable(table, setup.model, {setup.train}, {});
  } else {
    throw ConfigError(fmt::format("training of \"{}\" is not modelled", setup.train));
  }
}

// The choice for the layer that is examined: its window alone says whether it has a mask.
Kernels kernels_of(const Setup& setup) {
  ModelSpec model = setup.model;
  model.sliding_window = {setup.model.sliding_window[static_cast<std::size_t>(setup.block)]};
  return stock_kernels(
      model,
      {.compute = setup.dtype, .is_eager = setup.is_eager, .has_padding_mask = setup.has_padding_mask, .seq_len = setup.seq_len});
}

Part part_of(const Setup& setup) {
  GraphRequest request{.model = setup.model,
                       .table = parameter_table(setup.model),
                       .micro_batch = setup.micro_batch,
                       .seq_len = setup.seq_len,
                       .compute = setup.dtype,
                       .kernels = kernels_of(setup)};
  mark_trainable(setup, request.table);
  OpGraph forward = build_forward(request);
  const Segments segments = find_segments(forward);
  std::int32_t first = -1, end = -1;
  for (const Segment& segment : segments.all) {
    const bool is_inside = setup.is_block ? segment.layer == setup.block : segment.layer < 0 && segment.name != "embed";
    if (!is_inside) continue;
    if (first < 0) first = segment.first_forward;
    end = segment.end_forward;
  }
  return cut_part(forward, first, end);
}

// The largest view that a backward op reads of a storage.
const Value& largest_view(const OpGraph& graph, const SavedStorage& saved) {
  const Value* largest = nullptr;
  for (const OpId reader : saved.read_by) {
    for (const ValueId input : graph.op(reader).inputs) {
      if (!input.is_set() || graph.value(input).storage != saved.storage) continue;
      const Value& value = graph.value(input);
      if (largest == nullptr || value.sizes.numel() > largest->sizes.numel()) largest = &value;
    }
  }
  CHECK(largest != nullptr, "a saved storage is read");
  return *largest;
}

Json json_from(const Value& value) {
  const std::span<const std::int64_t> sizes = value.sizes.span();
  return {{"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())}, {"dtype", torch_name(value.dtype)}};
}

std::string_view kind_of(const OpGraph& graph, StorageId storage, StorageId input) {
  if (storage == input) return "input";
  switch (graph.storage(storage).role) {
    case StorageRole::HostScalar:
      return "host";
    case StorageRole::Input:
    case StorageRole::Buffer:
      return "outside";
    case StorageRole::Activation:
      return "activation";
    case StorageRole::Gradient:
    case StorageRole::Parameter:
      break;
  }
  CHECK(false, "gradients and parameters are not saved");
}

struct SavedRow {
  std::string kind;
  std::int64_t bytes;
  Json view;
};

std::vector<SavedRow> saved_rows(Part& part, bool input_requires_grad) {
  OpGraph& graph = part.graph;
  differentiate(graph, graph.loss, input_requires_grad ? part.input : ValueId{});
  const StorageId input = graph.value(part.input).storage;
  std::vector<SavedRow> rows;
  for (const SavedStorage& saved : saved_storages(graph)) {
    const Storage& storage = graph.storage(saved.storage);
    if (graph.names[static_cast<std::size_t>(storage.name)] == "output gradient") continue;
    rows.push_back({std::string(kind_of(graph, saved.storage, input)), storage.bytes, json_from(largest_view(graph, saved))});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const SavedRow& a, const SavedRow& b) { return a.bytes > b.bytes; });
  return rows;
}

std::int64_t sum_of(const std::vector<SavedRow>& rows, std::string_view kind, std::int64_t rounding) {
  std::int64_t sum = 0;
  for (const SavedRow& row : rows) sum += row.kind == kind ? round_up(row.bytes, rounding) : 0;
  return sum;
}

std::vector<std::string> multiset_of(const Json& rows) {
  std::vector<std::string> result;
  for (const Json& row : rows)
    result.push_back(fmt::format("{} {}", row.at("kind").get<std::string>(), row.at("bytes").get<std::int64_t>()));
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<std::string> differences(const Json& prediction, const Json& expected) {
  std::vector<std::string> fields;
  for (const auto& [field, truth] : expected.items()) {
    if (field == "saved") {
      const std::vector<std::string> ours = multiset_of(prediction["saved"]), theirs = multiset_of(truth);
      std::vector<std::string> only_ours, only_theirs;
      std::set_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(only_ours));
      std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(), std::back_inserter(only_theirs));
      if (!only_ours.empty()) fields.push_back(fmt::format("saved, only predicted: {}", fmt::join(only_ours, ", ")));
      if (!only_theirs.empty()) fields.push_back(fmt::format("saved, only true: {}", fmt::join(only_theirs, ", ")));
    } else if (!prediction.contains(field) || nlohmann::json(prediction[field]) != nlohmann::json(truth)) {
      fields.push_back(field);
    }
  }
  return fields;
}

}  // namespace

CasePrediction predict_saved_activations(const Json& truth_case, const std::filesystem::path& document) {
  JsonReader reader(truth_case, document.string());
  const Setup setup = setup_from(reader.object("setup"), document);
  Part part = part_of(setup);
  const Json output = json_from(part.graph.value(part.graph.loss));
  const ValueId logits = part.graph.logits;
  const std::vector<SavedRow> rows = saved_rows(part, setup.input_requires_grad);

  CasePrediction made;
  Json& prediction = made.prediction;
  prediction["activation_bytes"] = sum_of(rows, "activation", 1);
  prediction["activation_rounded_bytes"] = sum_of(rows, "activation", 512);
  prediction["input_bytes"] = sum_of(rows, "input", 1);
  prediction["outside_bytes"] = sum_of(rows, "outside", 1);
  prediction["saved"] = Json::array();
  for (const SavedRow& row : rows) {
    Json made_row = {{"kind", row.kind}, {"bytes", row.bytes}};
    made_row.update(row.view);
    prediction["saved"].push_back(made_row);
  }
  if (setup.is_block) {
    prediction["output"] = output;
  } else {
    const std::vector<SavedStorage> saved = saved_storages(part.graph);
    const StorageId storage = part.graph.value(logits).storage;
    prediction["logits"] = json_from(part.graph.value(logits));
    prediction["logits"]["saved"] =
        std::any_of(saved.begin(), saved.end(), [&](const SavedStorage& s) { return s.storage == storage; });
  }

  JsonReader expected = reader.object("expected");
  ValidationRow row;
  row.figure = "activation_bytes";
  row.predicted = prediction["activation_bytes"].get<double>();
  row.truth = static_cast<double>(expected.integer("activation_bytes"));
  row.differs = differences(prediction, expected.raw());
  made.rows.push_back(row);
  return made;
}

}  // namespace shardplan
