// How many parameters stand beside the text part of a model that also sees: a SigLIP tower and the projection into the text model.
//
// Nothing here trains or is planned; the count makes the sum of the whole checkpoint.
// Source: transformers 5.24, SiglipVisionModel and Gemma3MultiModalProjector.
#pragma once

#include "core/json_reader.h"

namespace shardplan {

// `reader`: the vision_config. 0 for a tower of another type.
[[nodiscard]] std::int64_t vision_numel(JsonReader& reader, std::int64_t text_hidden_size);

}  // namespace shardplan
