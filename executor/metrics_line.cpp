#include "executor/metrics_line.h"

#include <fmt/format.h>

#include <cmath>

#include "core/units.h"

namespace shardplan {

std::string text_from_metrics(const MetricsLine& line) {
  const auto fraction = [](double part, double whole) {
    return whole > 0 ? fmt::format("{:.2f}%", 100.0 * part / whole) : std::string("n/a");
  };
  return fmt::format("step: {}  loss: {:.5f}  grad_norm: {:.4f}  memory: {}GiB({})  tps: {}  tflops: {:.2f}  mfu: {}  pred: {}GiB",
                     line.step, line.loss, line.grad_norm, gib_from_bytes(line.memory_bytes),
                     fraction(static_cast<double>(line.memory_bytes), static_cast<double>(line.capacity_bytes)),
                     text_with_thousands(std::llround(line.tokens_per_second)), line.flops_per_second / 1e12,
                     fraction(line.flops_per_second, line.peak_flops_per_second), gib_from_bytes(line.predicted_bytes));
}

}  // namespace shardplan
