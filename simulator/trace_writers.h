// Timelines for people's tools: Chrome/Perfetto trace JSON (one track per stream, one counter per memory category).
#pragma once

#include <string>
#include <vector>

#include "core/timeline.h"

namespace shardplan {

// Several Timelines (phases, or simulated beside measured) become processes of one trace.
[[nodiscard]] std::string perfetto_trace(const std::vector<Timeline>& timelines);

}  // namespace shardplan
