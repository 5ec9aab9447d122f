// Truth kind "parameters": every field that transformers' module tree gives for a config.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/json_reader.h"
#include "planner/answers/validate.h"
#include "planner/graph/parameter_table.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kNumLabels = 2;

std::string fnv1a64(const ParameterTable& table) {
  std::vector<std::string> lines;
  for (const Parameter& p : table.parameters) lines.push_back(fmt::format("{} {}\n", p.name, fmt::join(p.shape, ",")));
  std::sort(lines.begin(), lines.end());
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::string& line : lines) {
    for (const char c : line) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return fmt::format("{:016x}", hash);
}

template <class Select>
std::int64_t numel_where(const ParameterTable& table, Select select) {
  std::int64_t sum = 0;
  for (const Parameter& p : table.parameters) sum += select(p) ? p.numel() : 0;
  return sum;
}

// Runs of decoder layers with equal counts.
Json layer_runs(const ParameterTable& table, std::int64_t num_layers) {
  Json runs = Json::array();
  Json last;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    const auto of_part = [&](auto select) { return numel_where(table, [&](const Parameter& p) { return p.layer == layer && select(p); }); };
    Json counts = {{"total_parameters", of_part([](const Parameter&) { return true; })},
                   {"attention_parameters", of_part([](const Parameter& p) { return p.part == ParameterPart::Attention; })},
                   {"mlp_parameters", of_part([](const Parameter& p) { return p.part == ParameterPart::Mlp; })},
                   {"norm_parameters", of_part([](const Parameter& p) { return p.kind == ParameterKind::Norm; })}};
    if (!runs.empty() && counts == last) {
      runs.back()["i"][1] = layer;
      continue;
    }
    last = counts;
    Json run = {{"i", {layer, layer}}};
    run.update(counts);
    runs.push_back(run);
  }
  return runs;
}

// One group per name below the layers, over the layers that have it.
Json tensor_groups(const ParameterTable& table) {
  Json groups = Json::array();
  std::map<std::string, std::size_t> place;  // name with {i}, shape -> last group
  for (const Parameter& p : table.parameters) {
    if (p.layer < 0) {
      groups.push_back({{"name", p.name}, {"shape", p.shape}});
      continue;
    }
    const std::string index = fmt::format(".{}.", p.layer);
    std::string name = p.name;
    name.replace(name.find(index), index.size(), ".{i}.");
    const std::string key = fmt::format("{} {}", name, fmt::join(p.shape, ","));
    const auto known = place.find(key);
    if (known != place.end() && groups[known->second]["i"][1].get<std::int64_t>() + 1 == p.layer) {
      groups[known->second]["i"][1] = p.layer;
      continue;
    }
    place[key] = groups.size();
    groups.push_back({{"name", name}, {"shape", p.shape}, {"i", {p.layer, p.layer}}});
  }
  return groups;
}

Json buffers_of(const ParameterTable& table) {
  Json buffers = Json::array();
  for (const BufferTensor& buffer : table.buffers) {
    // transformers 5 keeps a second copy of the frequencies beside those in use.
    std::string original = buffer.name;
    original.replace(original.rfind("inv_freq"), std::string_view("inv_freq").size(), "original_inv_freq");
    for (const std::string& name : {buffer.name, original}) {
      buffers.push_back({{"name", name}, {"shape", buffer.shape}, {"dtype", "float32"}, {"persistent", false}});
    }
  }
  return buffers;
}

std::string class_prefix(Family family) {
  switch (family) {
    case Family::Llama: return "Llama";
    case Family::Mistral: return "Mistral";
    case Family::Qwen2: return "Qwen2";
    case Family::Qwen3: return "Qwen3";
  }
  CHECK(false, "every family has a class");
}

Json classification(const ModelSpec& model, const ParameterTable& table) {
  Json removed = Json::array();
  std::int64_t total = table.total_numel() + kNumLabels * model.hidden_size;
  for (const Parameter& p : table.parameters) {
    if (p.part != ParameterPart::Head) continue;
    removed.push_back({{"name", p.name}, {"shape", p.shape}});
    total -= p.numel();
  }
  return {{"class", class_prefix(model.family) + "ForSequenceClassification"},
          {"num_labels", kNumLabels},
          {"total_parameters", total},
          {"added", Json::array({{{"name", "score.weight"}, {"shape", {kNumLabels, model.hidden_size}}}})},
          {"removed", removed}};
}

Json prediction_of(const ModelSpec& model, const ParameterTable& table) {
  const std::int64_t embedding = numel_where(table, [](const Parameter& p) { return p.part == ParameterPart::Embedding; });
  const std::int64_t head = numel_where(table, [](const Parameter& p) { return p.part == ParameterPart::Head; });
  Json tied = Json::array();
  if (table.head_is_tied) tied.push_back({"lm_head.weight", "model.embed_tokens.weight"});
  return {{"total_parameters", table.total_numel()},
          {"shape",
           {{"hidden_size", model.hidden_size},
            {"layers", model.num_layers},
            {"heads", model.num_heads},
            {"kv_heads", model.num_kv_heads},
            {"head_dim", model.head_dim},
            {"vocab_size", model.vocab_size}}},
          {"tensor_count", table.parameters.size()},
          {"embedding_parameters", embedding},
          {"position_embedding_parameters", 0},
          {"head_parameters", head},
          {"head_with_tied_parameters", table.head_is_tied ? embedding : head},
          {"outside_layers_parameters", numel_where(table, [](const Parameter& p) { return p.layer < 0; })},
          {"layers", layer_runs(table, model.num_layers)},
          {"tied", tied},
          {"tensors", tensor_groups(table)},
          {"table_fnv1a64", fnv1a64(table)},
          {"buffers", buffers_of(table)},
          {"sequence_classification", classification(model, table)}};
}

// (name, shape) of every tensor of a grouped table.
std::set<std::string> expanded(const Json& groups) {
  std::set<std::string> tensors;
  for (const Json& group : groups) {
    const std::string name = group.at("name").get<std::string>(), shape = group.at("shape").dump();
    const std::size_t at = name.find("{i}");
    if (at == std::string::npos) {
      tensors.insert(name + shape);
      continue;
    }
    for (std::int64_t i = group.at("i")[0].get<std::int64_t>(); i <= group.at("i")[1].get<std::int64_t>(); ++i) {
      std::string one = name;
      tensors.insert(one.replace(at, 3, std::to_string(i)) + shape);
    }
  }
  return tensors;
}

// Equality that does not look at the order of keys.
bool same(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

std::vector<std::string> differences(const Json& prediction, const Json& expected) {
  std::vector<std::string> fields;
  for (const auto& [field, truth] : expected.items()) {
    const bool equal = prediction.contains(field) && (field == "tensors" ? expanded(prediction[field]) == expanded(truth) : same(prediction[field], truth));
    if (!equal) fields.push_back(field);
  }
  return fields;
}

}  // namespace

CasePrediction predict_parameters(const Json& truth_case, const std::filesystem::path& document) {
  JsonReader reader(truth_case, document.string());
  const std::filesystem::path config = document.parent_path() / reader.string("config");
  const ModelSpec model = model_from_json(json_from_file(config), config.string(), config.stem().string());
  CasePrediction made;
  made.prediction = prediction_of(model, parameter_table(model));
  const Json& expected = reader.object("expected").raw();
  ValidationRow row;
  row.figure = "total_parameters";
  row.predicted = made.prediction["total_parameters"].get<double>();
  row.truth = reader.object("expected").number("total_parameters");
  row.differs = differences(made.prediction, expected);
  made.rows.push_back(row);
  return made;
}

}  // namespace shardplan
