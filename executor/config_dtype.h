// config.json beside weights of another dtype: the document unchanged but for that word.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

#include "core/dtype.h"

namespace shardplan {

[[nodiscard]] inline nlohmann::ordered_json config_with_dtype(nlohmann::ordered_json config, DType dtype) {
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(dtype);
  return config;
}

}  // namespace shardplan
