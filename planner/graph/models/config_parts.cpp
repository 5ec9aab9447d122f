#include "planner/graph/models/config_parts.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace shardplan {
namespace {

// No model comes near; below them no sum of bytes over a model overflows.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 22;
constexpr std::int64_t kLargestVocabulary = std::int64_t{1} << 24;
constexpr std::int64_t kMostLayers = 10000;

std::int64_t size_up_to(JsonReader& reader, KeyNames keys, std::int64_t otherwise, std::int64_t most) {
  for (const char* key : keys) {
    if (reader.has(key)) return reader.integer(key, 1, most);
  }
  return otherwise == 0 ? reader.integer(*keys.begin(), 1, most) : otherwise;
}

void check_heads(JsonReader& reader, const ModelSpec& model, const std::string& key) {
  if (model.head_dim > kLargestSize / model.num_heads) {
    reader.fail(key, fmt::format("{} heads of size {} are above {}", model.num_heads, model.head_dim, kLargestSize));
  }
}

}  // namespace

std::int64_t size_or(JsonReader& reader, KeyNames keys, std::int64_t otherwise) {
  return size_up_to(reader, keys, otherwise, kLargestSize);
}

void note_gap(JsonReader& reader, ModelSpec& model, const std::string& key, std::string problem, std::string remedy) {
  if (!model.graph_gap) model.graph_gap = GraphGap{std::move(problem), reader.where(key), std::move(remedy)};
}

void read_heads(JsonReader& reader, const SizeDefaults& defaults, ModelSpec& model) {
  model.num_heads = size_or(reader, {"num_attention_heads"}, defaults.heads);
  const bool states_kv_heads = reader.raw().contains("num_key_value_heads");
  const std::int64_t otherwise = states_kv_heads || defaults.kv_heads == 0 ? model.num_heads : defaults.kv_heads;
  model.num_kv_heads = reader.integer_or("num_key_value_heads", otherwise, 1);
  if (model.num_heads % model.num_kv_heads != 0) {
    reader.fail("num_key_value_heads",
                fmt::format("{} attention heads cannot share {} key/value heads evenly", model.num_heads, model.num_kv_heads),
                "a divisor of num_attention_heads");
  }
  if (!reader.has("head_dim") && defaults.head_dim == 0 && model.hidden_size % model.num_heads != 0) {
    reader.fail("hidden_size",
                fmt::format("hidden_size {} is no multiple of num_attention_heads {}, and there is no head_dim", model.hidden_size,
                            model.num_heads),
                "state head_dim, or correct one of the two");
  }
  model.head_dim =
      reader.integer_or("head_dim", defaults.head_dim != 0 ? defaults.head_dim : model.hidden_size / model.num_heads, 1);
  if (model.head_dim % 2 != 0) {
    reader.fail("head_dim", fmt::format("head size {} is odd, rotary embedding turns pairs", model.head_dim), "an even head_dim");
  }
  check_heads(reader, model, "head_dim");
}

void read_sizes(JsonReader& reader, const SizeDefaults& defaults, ModelSpec& model) {
  model.hidden_size = size_or(reader, {"hidden_size"}, defaults.hidden);
  model.embedding_size = model.hidden_size;
  model.num_layers = size_up_to(reader, {"num_hidden_layers"}, defaults.layers, kMostLayers);
  model.intermediate_size = size_or(reader, {"intermediate_size"}, defaults.mlp);
  model.vocab_size = size_up_to(reader, {"vocab_size"}, defaults.vocab, kLargestVocabulary);
  read_heads(reader, defaults, model);
  model.max_position_embeddings = reader.integer_or("max_position_embeddings", defaults.positions, 1);
}

void read_plain_heads(JsonReader& reader, KeyNames keys, std::int64_t otherwise, ModelSpec& model) {
  model.num_heads = size_or(reader, keys, otherwise);
  model.num_kv_heads = model.num_heads;
  if (model.hidden_size % model.num_heads != 0) {
    reader.fail(*keys.begin(), fmt::format("{} heads cannot share a hidden size of {} evenly", model.num_heads, model.hidden_size),
                "a divisor of the hidden size");
  }
  model.head_dim = model.hidden_size / model.num_heads;
}

void read_activation(JsonReader& reader, KeyNames keys, std::string otherwise, ModelSpec& model) {
  model.activation = std::move(otherwise);
  for (const char* key : keys) {
    if (!reader.has(key)) continue;
    model.activation = reader.string(key);
    break;
  }
  if (model.activation == "swish") model.activation = "silu";
}

void read_norm_eps(JsonReader& reader, const std::string& key, double otherwise, ModelSpec& model) {
  model.norm_eps = reader.number_or(key, otherwise);
  if (!(model.norm_eps >= 0.0)) reader.fail(key, fmt::format("{} is {}, below 0", key, model.norm_eps));
}

double read_probability(JsonReader& reader, const std::string& key, double otherwise) {
  const double p = reader.number_or(key, otherwise);
  if (!(p >= 0.0 && p < 1.0)) reader.fail(key, fmt::format("{} is {}, no probability below 1", key, p));
  return p;
}

void read_rope_object(JsonReader& rope_reader, ModelSpec& model, RopeSpec& rope) {
  const std::string type_key = rope_reader.has("rope_type") ? "rope_type" : "type";
  rope.type = rope_reader.string_or(type_key, "default");
  rope.theta = rope_reader.number_or("rope_theta", rope.theta);
  rope.share = rope_reader.number_or("partial_rotary_factor", rope.share);
  if (rope.type == "linear" || rope.type == "llama3") {
    rope.factor = rope_reader.number("factor");
    if (!(rope.factor >= 1.0)) rope_reader.fail("factor", fmt::format("factor is {}, less than 1", rope.factor));
  } else if (rope.type != "default") {
    note_gap(rope_reader, model, type_key, fmt::format("rotary embedding of type \"{}\" is not supported", rope.type),
             "default, linear or llama3");
  }
  if (rope.type == "llama3") {
    rope.low_freq_factor = rope_reader.number("low_freq_factor");
    rope.high_freq_factor = rope_reader.number("high_freq_factor");
    if (!(rope.low_freq_factor > 0.0))
      rope_reader.fail("low_freq_factor", fmt::format("low_freq_factor is {}, not positive", rope.low_freq_factor));
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      rope_reader.fail("high_freq_factor", fmt::format("high_freq_factor {} is not above low_freq_factor {}", rope.high_freq_factor,
                                                       rope.low_freq_factor));
    }
    rope.original_max_position_embeddings =
        rope_reader.integer_or("original_max_position_embeddings", model.max_position_embeddings, 1);
  }
  if (!(rope.theta > 1.0) || !std::isfinite(rope.theta))
    rope_reader.fail("rope_theta", fmt::format("rope_theta is {}, not above 1", rope.theta));
  if (!(rope.share > 0.0 && rope.share <= 1.0)) {
    rope_reader.fail("partial_rotary_factor", fmt::format("partial_rotary_factor is {}, no share of a head", rope.share),
                     "above 0, at most 1");
  }
}

void read_rope(JsonReader& reader, double theta, double share, ModelSpec& model) {
  model.rope.theta = reader.number_or("rope_theta", theta);
  model.rope.share = reader.number_or("partial_rotary_factor", share);
  // The older key wins where both are there, as in transformers.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    JsonReader rope_reader = reader.object(key);
    if (rope_reader.raw().empty()) continue;
    read_rope_object(rope_reader, model, model.rope);
    return;
  }
  if (!(model.rope.theta > 1.0) || !std::isfinite(model.rope.theta))
    reader.fail("rope_theta", fmt::format("rope_theta is {}, not above 1", model.rope.theta));
  if (!(model.rope.share > 0.0 && model.rope.share <= 1.0)) {
    reader.fail("partial_rotary_factor", fmt::format("partial_rotary_factor is {}, no share of a head", model.rope.share),
                "above 0, at most 1");
  }
}

std::int64_t window_or(JsonReader& reader, std::int64_t otherwise) {
  if (!reader.raw().contains("sliding_window")) return otherwise;
  return reader.integer_or("sliding_window", 0, 1);
}

void windows_everywhere(std::int64_t window, ModelSpec& model) {
  model.sliding_window.assign(static_cast<std::size_t>(model.num_layers), window);
}

void windows_by_layer_types(JsonReader& reader, std::int64_t window, ModelSpec& model) {
  windows_everywhere(0, model);
  const std::vector<std::string> types = reader.strings("layer_types");
  if (types.size() != model.sliding_window.size()) {
    reader.fail("layer_types", fmt::format("{} layer types for {} layers", types.size(), model.sliding_window.size()),
                "one per layer");
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "full_attention" && types[i] != "sliding_attention") {
      reader.fail("layer_types", fmt::format("layer type \"{}\" is not supported", types[i]),
                  "full_attention or sliding_attention");
    }
    if (types[i] == "full_attention") continue;
    if (window == 0)
      reader.fail("layer_types", "a layer is sliding_attention, but there is no window",
                  "set use_sliding_window and sliding_window");
    model.sliding_window[i] = window;
  }
}

void read_common(JsonReader& reader, const CommonDefaults& defaults, ModelSpec& model) {
  model.tied_embeddings = reader.boolean_or("tie_word_embeddings", defaults.is_tied);
  model.initializer_range = reader.number_or("initializer_range", 0.02);
  model.pad_token_id = reader.raw().contains("pad_token_id") ? reader.integer_or("pad_token_id", -1) : defaults.pad_token_id;
  if (model.pad_token_id < 0) model.pad_token_id = -1;
  if (model.pad_token_id >= model.vocab_size) {
    reader.fail("pad_token_id",
                fmt::format("pad_token_id {} is outside the vocabulary of {}", model.pad_token_id, model.vocab_size));
  }
}

}  // namespace shardplan
