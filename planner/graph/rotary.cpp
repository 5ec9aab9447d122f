#include "planner/graph/rotary.h"

#include <cmath>
#include <numbers>

namespace shardplan {
namespace {

// Long wavelengths are stretched by the factor, short ones kept, those between blended.
float llama3_frequency(float frequency, const RopeSpec& rope) {
  const double low_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.low_freq_factor;
  const double high_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.high_freq_factor;
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  const float factor = static_cast<float>(rope.factor);
  const float stretched = wavelength > static_cast<float>(low_wavelength) ? frequency / factor : frequency;
  const bool is_between = !(wavelength < static_cast<float>(high_wavelength)) && !(wavelength > static_cast<float>(low_wavelength));
  if (!is_between) return stretched;
  const float blend = (static_cast<float>(rope.original_max_position_embeddings) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                      static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0F - blend) * stretched / factor + blend * stretched;
}

}  // namespace

std::vector<float> inverse_frequencies(const ModelSpec& model) {
  std::vector<float> result(static_cast<std::size_t>(model.head_dim / 2));
  const float theta = static_cast<float>(model.rope.theta);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(model.head_dim);
    const float power = static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    float frequency = 1.0F / power;
    if (model.rope.type == "linear") frequency /= static_cast<float>(model.rope.factor);
    if (model.rope.type == "llama3") frequency = llama3_frequency(frequency, model.rope);
    result[i] = frequency;
  }
  return result;
}

}  // namespace shardplan
