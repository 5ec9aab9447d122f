// Timelines for people's tools: Chrome/Perfetto trace JSON (one track per stream, one counter per memory category).
//
// Counters hold the level after the changes of an instant, in bytes; categories that never hold anything have no counter. Times are
// microseconds with three decimals, so that nanoseconds survive. Same Timelines, same text.
// Source: Chrome's Trace Event Format (events M, X and C), which ui.perfetto.dev opens.
#pragma once

#include <string>
#include <vector>

#include "core/timeline.h"

namespace shardplan {

// Several Timelines (phases, or simulated beside measured) become processes of one trace.
[[nodiscard]] std::string perfetto_trace(const std::vector<Timeline>& timelines);

}  // namespace shardplan
