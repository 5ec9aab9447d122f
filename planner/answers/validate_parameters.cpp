// Truth kind "parameters": every field that transformers' module tree gives for a config.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/json_reader.h"
#include "planner/answers/validate.h"
#include "planner/graph/models/model_family.h"
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
    const auto of_part = [&](auto select) {
      return numel_where(table, [&](const Parameter& p) { return p.layer == layer && select(p); });
    };
    Json counts = {{"total_parameters", of_part([](const Parameter&) { return true; })},
                   {"attention_parameters", of_part([](const Parameter& p) { return p.part == ParameterPart::Attention; })},
                   {"mlp_parameters", of_part([](const Parameter& p) { return p.part == ParameterPart::Mlp; })},
                   {"norm_parameters", of_part([](const Parameter& p) { return p.part == ParameterPart::LayerNorm; })}};
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

// A name with its layer and expert as {i} and {e}.
std::string pattern_of(const Parameter& p) {
  std::string name = p.name;
  const auto abstract = [&](std::int32_t number, const char* word) {
    const std::string index = fmt::format(".{}.", number);
    const std::size_t at = fmt::format(".{}", name).find(index);  // a name may begin with the list of layers: "h.3."
    if (at != std::string::npos) name.replace(at, index.size() - 1, fmt::format("{}.", word));
  };
  if (p.layer >= 0) abstract(p.layer, "{i}");
  if (p.expert >= 0) {
    const std::string index = fmt::format("experts.{}.", p.expert);
    name.replace(name.find(index), index.size(), "experts.{e}.");
  }
  return name;
}

// One group per pattern and shape, over the layers and experts that have it.
Json tensor_groups(const std::vector<Parameter>& parameters) {
  Json groups = Json::array();
  std::map<std::string, std::size_t> place;  // pattern, shape -> last group
  for (const Parameter& p : parameters) {
    if (p.layer < 0) {
      groups.push_back({{"name", p.name}, {"shape", p.shape}});
      continue;
    }
    const std::string name = pattern_of(p), key = fmt::format("{} {}", name, fmt::join(p.shape, ","));
    const auto known = place.find(key);
    if (known != place.end()) {
      Json& group = groups[known->second];
      const std::int64_t last = group["i"][1].get<std::int64_t>();
      if (p.layer == last || p.layer == last + 1) {
        group["i"][1] = p.layer;
        if (p.expert >= 0) group["e"][1] = std::max(group["e"][1].get<std::int32_t>(), p.expert);
        continue;
      }
    }
    place[key] = groups.size();
    Json group = {{"name", name}, {"shape", p.shape}, {"i", {p.layer, p.layer}}};
    if (p.expert >= 0) group["e"] = {p.expert, p.expert};
    groups.push_back(group);
  }
  return groups;
}

Json buffers_of(const ParameterTable& table) {
  Json buffers = Json::array();
  for (const BufferTensor& b : table.buffers) {
    buffers.push_back({{"name", b.name}, {"shape", b.shape}, {"dtype", torch_name(b.dtype)}, {"persistent", b.is_persistent}});
  }
  return buffers;
}

std::string module_name(const ParameterTable& table, const std::string& name) {
  for (const ModuleRename& rename : table.renames) {
    if (name.starts_with(rename.disk)) return rename.module + name.substr(rename.disk.size());
  }
  return name;
}

// A head of our own has its name in the module as in the file but for a prefix that concerns it alone.
std::string head_name(const ParameterTable& table, const std::string& name) {
  const bool renames_all = !table.renames.empty() && table.renames[0].disk.empty();
  return renames_all ? name : module_name(table, name);
}

Json classification(const ModelSpec& model, const ParameterTable& table) {
  const ModelFamily& family = family_of(model);
  if (!family.has_classification) return nullptr;
  Json removed = Json::array();
  std::int64_t total = table.total_numel() + kNumLabels * model.embedding_size;
  for (const Parameter& p : table.parameters) {
    if (p.part != ParameterPart::Head) continue;
    removed.push_back({{"name", head_name(table, p.name)}, {"shape", p.shape}});
    total -= p.numel();
  }
  // Two of Gemma 3 have one; that of the text model says so.
  const char* kind = model.family == Family::Gemma3 ? "TextForSequenceClassification" : "ForSequenceClassification";
  return {{"class", std::string(family.class_prefix) + kind},
          {"num_labels", kNumLabels},
          {"total_parameters", total},
          {"added", Json::array({{{"name", "score.weight"}, {"shape", {kNumLabels, model.embedding_size}}}})},
          {"removed", removed}};
}

Json shape_of(const ModelSpec& model) {
  Json shape = {{"hidden_size", model.hidden_size}, {"layers", model.num_layers}, {"heads", model.num_heads},
                {"kv_heads", model.num_kv_heads},   {"head_dim", model.head_dim}, {"vocab_size", model.vocab_size}};
  if (model.latent.kv_rank > 0) {
    shape["head_dim"] = nullptr;
    shape["qk_head_dim"] = model.head_dim;
    shape["v_head_dim"] = model.latent.value_dim;
  }
  return shape;
}

// What one token reads: of the experts of a layer, those that it visits.
std::int64_t active_parameters(const ModelSpec& model, const ParameterTable& table) {
  return table.total_numel() - numel_where(table, [&](const Parameter& p) { return p.expert >= model.experts.per_token; });
}

Json prediction_of(const ModelSpec& model, const ParameterTable& table) {
  const auto of_part = [&](ParameterPart part) {
    return numel_where(table, [part](const Parameter& p) { return p.part == part; });
  };
  const std::int64_t embedding = of_part(ParameterPart::Embedding), head = of_part(ParameterPart::Head);
  Json tied = Json::array();
  if (table.head_is_tied) tied.push_back({table.head_name, table.embedding_name});
  Json made = {{"total_parameters", table.total_numel()},
               {"shape", shape_of(model)},
               {"tensor_count", table.parameters.size()},
               {"embedding_parameters", embedding},
               {"position_embedding_parameters", of_part(ParameterPart::Position)},
               {"head_parameters", head},
               {"head_with_tied_parameters", table.head_is_tied ? embedding + head : head},
               {"outside_layers_parameters", numel_where(table, [](const Parameter& p) { return p.layer < 0; })},
               {"layers", layer_runs(table, model.num_layers)},
               {"tied", tied},
               {"tensors", tensor_groups(table.parameters)},
               {"table_fnv1a64", fnv1a64(table)},
               {"buffers", buffers_of(table)},
               {"sequence_classification", classification(model, table)}};
  for (const ModuleRename& rename : table.renames)
    made["module_renames"].push_back({{"disk", rename.disk}, {"module", rename.module}});
  if (model.vision_numel > 0) made["total_with_vision_parameters"] = table.total_numel() + model.vision_numel;
  if (model.experts.count > 0) made["active_parameters"] = active_parameters(model, table);
  if (!table.module_tensors.empty()) {
    made["module_tensors"] = tensor_groups(table.module_tensors);
    made["module_tensor_count"] =
        static_cast<std::int64_t>(table.parameters.size() + table.module_tensors.size()) - table.num_fused;
  }
  return made;
}

// (name, shape) of every tensor of a grouped table.
std::set<std::string> expanded(const Json& groups) {
  std::set<std::string> tensors;
  const auto expand = [](const Json& group, const char* key, const std::vector<std::string>& names) {
    const std::string word = fmt::format("{{{}}}", key);
    std::vector<std::string> result;
    for (const std::string& name : names) {
      const std::size_t at = name.find(word);
      if (at == std::string::npos) {
        result.push_back(name);
        continue;
      }
      for (std::int64_t i = group.at(key)[0].get<std::int64_t>(); i <= group.at(key)[1].get<std::int64_t>(); ++i) {
        std::string one = name;
        result.push_back(one.replace(at, word.size(), std::to_string(i)));
      }
    }
    return result;
  };
  for (const Json& group : groups) {
    const std::string shape = group.at("shape").dump();
    for (const std::string& name : expand(group, "e", expand(group, "i", {group.at("name").get<std::string>()})))
      tensors.insert(name + shape);
  }
  return tensors;
}

// Equality that does not look at the order of keys.
bool same(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

std::vector<std::string> differences(const Json& prediction, const Json& expected) {
  std::vector<std::string> fields;
  for (const auto& [field, truth] : expected.items()) {
    const bool equal = prediction.contains(field) &&
                       (field == "tensors" || field == "module_tensors" ? expanded(prediction[field]) == expanded(truth)
                                                                        : same(prediction[field], truth));
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
