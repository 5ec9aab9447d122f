// The line of a training step that people know from torchtitan, with the prediction at its end.
#pragma once

#include <cstdint>
#include <string>

namespace shardplan {

struct MetricsLine {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0;
  std::int64_t memory_bytes = 0;     // peak of the step
  std::int64_t capacity_bytes = 0;   // of the device; 0 = not known
  std::int64_t predicted_bytes = 0;  // the same peak, predicted
  double tokens_per_second = 0;      // per device
  double flops_per_second = 0;       // per device, of the model: without recompute
  double peak_flops_per_second = 0;  // of the device in compute dtype; 0 = not known
};

[[nodiscard]] std::string text_from_metrics(const MetricsLine& line);

}  // namespace shardplan
