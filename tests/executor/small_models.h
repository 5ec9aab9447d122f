// Configs of models small enough for a test, and graphs made of them. Sizes are no multiples of anything on purpose.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan {

struct SmallModel {
  std::string type = "llama";  // model_type
  std::int64_t layers = 2;
  std::int64_t hidden = 48;
  std::int64_t mlp = 104;
  std::int64_t heads = 4, kv_heads = 2;
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t vocab = 131;
  std::int64_t window = 0;  // mistral: sliding window, 0 none
  bool tied = false;
};

[[nodiscard]] nlohmann::ordered_json config_of(const SmallModel& model);

struct SmallGraph {
  SmallModel model;
  std::vector<std::string> train = {"all"};
  DType compute = DType::F32;
  std::int64_t batch = 2, seq_len = 37;
};
[[nodiscard]] GraphRequest request_of(const SmallGraph& graph);

}  // namespace shardplan
