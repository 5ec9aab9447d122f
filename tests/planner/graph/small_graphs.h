// Small models and graphs for the tests of planner/graph, from facts in view.
#pragma once

#include <rapidcheck.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan::testing_graph {

// A config.json of a small model with two layers; `changes` are merged over it, null values included.
[[nodiscard]] nlohmann::ordered_json small_config(const std::string& model_type,
                                                  const nlohmann::ordered_json& changes = nlohmann::ordered_json::object());
[[nodiscard]] ModelSpec small_model(const std::string& model_type,
                                    const nlohmann::ordered_json& changes = nlohmann::ordered_json::object());

// B = 2, S = 12, fp32 on CPU, everything trains.
[[nodiscard]] GraphRequest small_request(const ModelSpec& model);

// Any family, sizes, heads, window, ties, dtype, device, kernel, loss form and trainable selection.
[[nodiscard]] rc::Gen<GraphRequest> arbitrary_request();

// For the report of a failed property.
[[nodiscard]] std::string text_from(const GraphRequest& request);

}  // namespace shardplan::testing_graph
