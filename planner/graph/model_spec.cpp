#include "planner/graph/model_spec.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

// No model comes near; below them no sum of bytes over a model overflows.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 22;
constexpr std::int64_t kLargestVocabulary = std::int64_t{1} << 24;
constexpr std::int64_t kMostLayers = 10000;

// What transformers' configuration class takes for keys that are not in the file.
struct FamilyDefaults {
  std::string_view model_type;
  Family family;
  std::int64_t max_position_embeddings;
  std::int64_t num_kv_heads;  // 0: as many as heads
  std::int64_t head_dim;      // 0: hidden size / heads
};

constexpr std::array<FamilyDefaults, 4> kFamilies = {{
    {"llama", Family::Llama, 2048, 0, 0},
    {"mistral", Family::Mistral, 131072, 8, 0},
    {"qwen2", Family::Qwen2, 32768, 32, 0},
    {"qwen3", Family::Qwen3, 32768, 32, 128},
}};

const FamilyDefaults& family_of(JsonReader& reader) {
  const std::string model_type = reader.string("model_type");
  std::vector<std::string> supported;
  for (const FamilyDefaults& family : kFamilies) {
    if (family.model_type == model_type) return family;
    supported.emplace_back(family.model_type);
  }
  const std::string near = nearest(model_type, supported);
  reader.fail("model_type", fmt::format("model_type \"{}\" is not supported", model_type),
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

void read_rope_scaling(JsonReader& rope_reader, RopeSpec& rope, std::int64_t max_position_embeddings) {
  const std::string type_key = rope_reader.has("rope_type") ? "rope_type" : "type";
  rope.type = rope_reader.string_or(type_key, "default");
  rope.theta = rope_reader.number_or("rope_theta", rope.theta);
  if (rope.type == "linear" || rope.type == "llama3") {
    rope.factor = rope_reader.number("factor");
    if (!(rope.factor >= 1.0)) rope_reader.fail("factor", fmt::format("factor is {}, less than 1", rope.factor));
  } else if (rope.type != "default") {
    rope_reader.fail(type_key, fmt::format("rotary embedding of type \"{}\" is not supported", rope.type), "default, linear or llama3");
  }
  if (rope.type == "llama3") {
    rope.low_freq_factor = rope_reader.number("low_freq_factor");
    rope.high_freq_factor = rope_reader.number("high_freq_factor");
    if (!(rope.low_freq_factor > 0.0)) rope_reader.fail("low_freq_factor", fmt::format("low_freq_factor is {}, not positive", rope.low_freq_factor));
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      rope_reader.fail("high_freq_factor", fmt::format("high_freq_factor {} is not above low_freq_factor {}", rope.high_freq_factor, rope.low_freq_factor));
    }
    rope.original_max_position_embeddings = rope_reader.integer_or("original_max_position_embeddings", max_position_embeddings, 1);
  }
  if (rope_reader.number_or("partial_rotary_factor", 1.0) != 1.0) {
    rope_reader.fail("partial_rotary_factor", "rotary embedding of a part of the head is not supported");
  }
}

RopeSpec rope_of(JsonReader& reader, std::int64_t max_position_embeddings) {
  RopeSpec rope;
  rope.theta = reader.number_or("rope_theta", 10000.0);
  // The older key wins where both are there, as in transformers.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    JsonReader rope_reader = reader.object(key);
    if (rope_reader.raw().empty()) continue;
    read_rope_scaling(rope_reader, rope, max_position_embeddings);
    break;
  }
  reader.ignore("rope_parameters");
  if (!(rope.theta > 1.0) || !std::isfinite(rope.theta)) reader.fail("rope_theta", fmt::format("rope_theta is {}, not above 1", rope.theta));
  if (reader.number_or("partial_rotary_factor", 1.0) != 1.0) {
    reader.fail("partial_rotary_factor", "rotary embedding of a part of the head is not supported");
  }
  return rope;
}

// An absent window has a default of its own; null switches it off.
std::int64_t window_or(JsonReader& reader, std::int64_t otherwise) {
  if (!reader.raw().contains("sliding_window")) return otherwise;
  return reader.integer_or("sliding_window", 0, 1);
}

std::vector<std::int64_t> layer_windows(JsonReader& reader, const ModelSpec& model) {
  constexpr std::int64_t kDefaultWindow = 4096;
  std::vector<std::int64_t> windows(static_cast<std::size_t>(model.num_layers), 0);
  if (model.family == Family::Llama) return windows;
  if (model.family == Family::Mistral) {
    windows.assign(windows.size(), window_or(reader, kDefaultWindow));
    return windows;
  }
  const std::int64_t window = reader.boolean_or("use_sliding_window", false) ? window_or(reader, kDefaultWindow) : 0;
  const std::int64_t first = reader.integer_or("max_window_layers", 28, 0);
  if (!reader.has("layer_types")) {
    for (std::size_t i = 0; i < windows.size(); ++i) windows[i] = static_cast<std::int64_t>(i) >= first ? window : 0;
    return windows;
  }
  const std::vector<std::string> types = reader.strings("layer_types");
  if (types.size() != windows.size()) {
    reader.fail("layer_types", fmt::format("{} layer types for {} layers", types.size(), windows.size()), "one per layer");
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (types[i] != "full_attention" && types[i] != "sliding_attention") {
      reader.fail("layer_types", fmt::format("layer type \"{}\" is not supported", types[i]), "full_attention or sliding_attention");
    }
    if (types[i] == "full_attention") continue;
    if (window == 0) reader.fail("layer_types", "a layer is sliding_attention, but there is no window", "set use_sliding_window and sliding_window");
    windows[i] = window;
  }
  return windows;
}

void read_heads(JsonReader& reader, const FamilyDefaults& defaults, ModelSpec& model) {
  model.num_heads = reader.integer("num_attention_heads", 1, kLargestSize);
  const bool states_kv_heads = reader.raw().contains("num_key_value_heads");
  const std::int64_t otherwise = states_kv_heads || defaults.num_kv_heads == 0 ? model.num_heads : defaults.num_kv_heads;
  model.num_kv_heads = reader.integer_or("num_key_value_heads", otherwise, 1);
  if (model.num_heads % model.num_kv_heads != 0) {
    reader.fail("num_key_value_heads", fmt::format("{} attention heads cannot share {} key/value heads evenly", model.num_heads, model.num_kv_heads),
                "a divisor of num_attention_heads");
  }
  if (!reader.has("head_dim") && defaults.head_dim == 0 && model.hidden_size % model.num_heads != 0) {
    reader.fail("hidden_size", fmt::format("hidden_size {} is no multiple of num_attention_heads {}, and there is no head_dim", model.hidden_size, model.num_heads),
                "state head_dim, or correct one of the two");
  }
  model.head_dim = reader.integer_or("head_dim", defaults.head_dim != 0 ? defaults.head_dim : model.hidden_size / model.num_heads, 1);
  if (model.head_dim % 2 != 0) {
    reader.fail("head_dim", fmt::format("head size {} is odd, rotary embedding turns pairs", model.head_dim), "an even head_dim");
  }
  if (model.head_dim > kLargestSize / model.num_heads) {
    reader.fail("head_dim", fmt::format("{} heads of size {} are above {}", model.num_heads, model.head_dim, kLargestSize));
  }
}

void read_switches(JsonReader& reader, ModelSpec& model) {
  model.activation = reader.string_or("hidden_act", "silu");
  if (model.activation == "swish") model.activation = "silu";
  if (model.activation != "silu") reader.fail("hidden_act", fmt::format("activation \"{}\" is not supported", model.activation), "silu");
  const bool attention_bias = reader.boolean_or("attention_bias", false);
  const bool reads_attention_bias = model.family == Family::Llama || model.family == Family::Qwen3;
  model.o_bias = reads_attention_bias && attention_bias;
  model.qkv_bias = model.o_bias || model.family == Family::Qwen2;
  model.mlp_bias = reader.boolean_or("mlp_bias", false) && model.family == Family::Llama;
  model.qk_norm = model.family == Family::Qwen3;
  model.tied_embeddings = reader.boolean_or("tie_word_embeddings", false);
  model.rms_norm_eps = reader.number_or("rms_norm_eps", 1e-6);
  if (!(model.rms_norm_eps >= 0.0)) reader.fail("rms_norm_eps", fmt::format("rms_norm_eps is {}, below 0", model.rms_norm_eps));
  model.initializer_range = reader.number_or("initializer_range", 0.02);
  if (reader.number_or("attention_dropout", 0.0) != 0.0) reader.fail("attention_dropout", "dropout is not supported", "0.0");
  if (reader.has("quantization_config")) reader.fail("quantization_config", "quantised checkpoints are not supported", "use the unquantised checkpoint");
  model.pad_token_id = reader.integer_or("pad_token_id", -1);
  if (model.pad_token_id < 0) model.pad_token_id = -1;
  if (model.pad_token_id >= model.vocab_size) {
    reader.fail("pad_token_id", fmt::format("pad_token_id {} is outside the vocabulary of {}", model.pad_token_id, model.vocab_size));
  }
}

}  // namespace

ModelSpec model_from_json(const nlohmann::ordered_json& config, const std::string& file, const std::string& name) {
  JsonReader reader(config, file);
  if (!reader.is_object()) throw ConfigError("a model's config.json is an object", file);
  const FamilyDefaults& defaults = family_of(reader);
  ModelSpec model;
  model.name = name;
  model.model_type = defaults.model_type;
  model.family = defaults.family;
  model.hidden_size = reader.integer("hidden_size", 1, kLargestSize);
  model.num_layers = reader.integer("num_hidden_layers", 1, kMostLayers);
  model.intermediate_size = reader.integer("intermediate_size", 1, kLargestSize);
  model.vocab_size = reader.integer("vocab_size", 1, kLargestVocabulary);
  read_heads(reader, defaults, model);
  model.max_position_embeddings = reader.integer_or("max_position_embeddings", defaults.max_position_embeddings, 1);
  read_switches(reader, model);
  model.rope = rope_of(reader, model.max_position_embeddings);
  model.sliding_window = layer_windows(reader, model);
  model.checkpoint_dtype = dtype_of(reader);
  model.config = config;
  return model;
}

}  // namespace shardplan
