#include "planner/graph/models/vision_tower.h"

#include "planner/graph/models/config_parts.h"

namespace shardplan {

std::int64_t vision_numel(JsonReader& reader, std::int64_t text_hidden_size) {
  if (reader.string_or("model_type", "siglip_vision_model") != "siglip_vision_model") return 0;
  const std::int64_t hidden = size_or(reader, {"hidden_size"}, 768), mlp = size_or(reader, {"intermediate_size"}, 3072);
  const std::int64_t layers = size_or(reader, {"num_hidden_layers"}, 12), channels = size_or(reader, {"num_channels"}, 3);
  const std::int64_t patch = size_or(reader, {"patch_size"}, 16), patches_a_side = size_or(reader, {"image_size"}, 224) / patch;
  const std::int64_t norm = 2 * hidden, attention = 4 * (hidden * hidden + hidden), two_layers = 2 * hidden * mlp + mlp + hidden;
  const std::int64_t embeddings = channels * patch * patch * hidden + hidden + patches_a_side * patches_a_side * hidden;
  std::int64_t sum = embeddings + layers * (attention + two_layers + 2 * norm) + norm;
  // A head that pools by attention: a probe, attention, a norm and an MLP.
  if (reader.boolean_or("vision_use_head", true)) sum += hidden + attention + norm + two_layers;
  const std::int64_t projector = hidden * text_hidden_size + hidden;
  return sum + projector;
}

}  // namespace shardplan
