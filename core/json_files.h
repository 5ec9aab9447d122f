// On-disk forms of StepProgram and Timeline (docs/step_program.md, docs/timeline.md): versioned JSON, base-unit integers.
//
// Reading is strict (core/json_reader.h): an unknown or missing key is a ConfigError. Writing then reading gives an equal value.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/step_program.h"
#include "core/timeline.h"

namespace shardplan {

[[nodiscard]] nlohmann::ordered_json json_from_program(const StepProgram& program);
[[nodiscard]] StepProgram program_from_json(const nlohmann::ordered_json& document, const std::string& file);

[[nodiscard]] nlohmann::ordered_json json_from_timeline(const Timeline& timeline);
[[nodiscard]] Timeline timeline_from_json(const nlohmann::ordered_json& document, const std::string& file);

// {category name: bytes}, zero categories left out.
[[nodiscard]] nlohmann::ordered_json json_from_categories(const CategoryBytes& bytes);

}  // namespace shardplan
