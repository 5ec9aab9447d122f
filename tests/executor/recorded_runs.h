// The recorded runs of data/trajectories.json as plans of our own, and whole runs of a plan in a folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/lowering/plan.h"

namespace shardplan {

[[nodiscard]] const nlohmann::ordered_json& trajectories();
[[nodiscard]] const nlohmann::ordered_json& case_named(const std::string& name);
[[nodiscard]] Plan plan_of_case(const nlohmann::ordered_json& c);
[[nodiscard]] std::filesystem::path data_of_case(const nlohmann::ordered_json& c);

// Start weights of the recorded runs for the plan's model, in folder/model.
void write_start_model(const Plan& plan, const std::filesystem::path& folder);

// Trains folder/model (written if it is not there) into folder/run and returns the exit code: 0 also says that prediction and
// measurement agreed to the byte.
[[nodiscard]] int train(const Plan& plan, const std::filesystem::path& data, const std::filesystem::path& folder);

}  // namespace shardplan
