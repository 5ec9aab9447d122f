#include "planner/graph/model_spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_reader.h"
#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"
#include "planner/graph/models/vision_tower.h"

namespace shardplan {
namespace {

const ModelFamily& family_from(JsonReader& reader) {
  const std::string model_type = reader.string("model_type");
  std::vector<std::string> supported;
  for (const ModelFamily& family : model_families()) {
    if (family.model_type == model_type) return family;
    supported.emplace_back(family.model_type);
  }
  const std::string near = nearest(model_type, supported);
  reader.fail(
      "model_type", fmt::format("model_type \"{}\" is not supported", model_type),
      fmt::format("one of {}{}", fmt::join(supported, ", "), near.empty() ? "" : fmt::format("; the nearest is \"{}\"", near)));
}

DType dtype_of(JsonReader& reader) {
  const std::string key = reader.has("dtype") ? "dtype" : "torch_dtype";
  const std::string word = reader.string_or(key, "float32");
  if (word == "auto") return DType::F32;
  const std::optional<DType> dtype = dtype_from_torch_name(word);
  if (!dtype || !is_floating(*dtype)) {
    reader.fail(key, fmt::format("\"{}\" is no floating-point dtype", word), "float32, bfloat16 or float16");
  }
  return *dtype;
}

void note_missing_graph(JsonReader& reader, const ModelFamily& family, ModelSpec& model) {
  if (family.missing.empty()) return;
  std::vector<std::string> planned;
  for (const ModelFamily& other : model_families()) {
    if (other.missing.empty()) planned.emplace_back(other.model_type);
  }
  std::string near = nearest(model.model_type, planned);
  if (near.empty()) near = "llama";
  note_gap(reader, model, "model_type",
           fmt::format("models of type \"{}\" are counted, but not planned: {}", model.model_type, family.missing),
           fmt::format("one of {}; the nearest is \"{}\"", fmt::join(planned, ", "), near));
}

}  // namespace

ModelSpec model_from_json(const nlohmann::ordered_json& config, const std::string& file, const std::string& name) {
  JsonReader reader(config, file);
  if (!reader.is_object()) throw ConfigError("a model's config.json is an object", file);
  const ModelFamily& family = family_from(reader);
  ModelSpec model;
  model.name = name;
  model.model_type = family.model_type;
  model.family = family.family;
  if (reader.has("quantization_config"))
    reader.fail("quantization_config", "quantised checkpoints are not supported", "use the unquantised checkpoint");
  model.checkpoint_dtype = dtype_of(reader);
  model.buffer_dtype = model.checkpoint_dtype;
  note_missing_graph(reader, family, model);
  if (reader.has("text_config")) {
    // A larger model with a text part: the text part is what trains here, built from its own config alone.
    JsonReader text = reader.object("text_config");
    model.is_nested = true;
    model.buffer_dtype = dtype_of(text);
    family.read(text, model);
    if (reader.has("vision_config")) {
      JsonReader vision = reader.object("vision_config");
      model.vision_numel = vision_numel(vision, model.hidden_size);
    }
  } else {
    model.is_nested = model.model_type == "gemma3";
    family.read(reader, model);
  }
  model.config = config;
  return model;
}

void require_graph(const ModelSpec& model) {
  if (model.graph_gap) throw ConfigError(model.graph_gap->problem, model.graph_gap->where, model.graph_gap->remedy);
}

}  // namespace shardplan
