// The answer as one JSON document, kind "shardplan.answer" (docs/answer.md): bytes integers, seconds numbers, fractions 0..1.
//
// A figure whose model is not there is null. `seconds` of the search is null unless it is handed in: the same request then gives
// the same bytes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "planner/answers/answer.h"

namespace shardplan {

[[nodiscard]] nlohmann::ordered_json json_from_answer(const Answer& answer, std::optional<double> search_seconds = std::nullopt);
[[nodiscard]] nlohmann::ordered_json json_from_forecast(const Forecast& forecast);

}  // namespace shardplan
