#include "executor/rotary_tables.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace shardplan {
namespace {

// Frequencies of long wavelength are divided by the factor, of short ones kept, between them blended: all in fp32, element by
// element.
void scale_like_llama3(std::vector<float>& frequencies, const RopeSpec& rope) {
  const float low_wavelength =
      static_cast<float>(static_cast<double>(rope.original_max_position_embeddings) / rope.low_freq_factor);
  const float high_wavelength =
      static_cast<float>(static_cast<double>(rope.original_max_position_embeddings) / rope.high_freq_factor);
  const auto old_context = static_cast<float>(rope.original_max_position_embeddings);
  const auto factor = static_cast<float>(rope.factor), low = static_cast<float>(rope.low_freq_factor);
  const auto width = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  for (float& f : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) * (1.0F / f);
    const float scaled = wavelength > low_wavelength ? f / factor : f;
    const float smooth = ((1.0F / wavelength) * old_context - low) / width;
    const bool between = !(wavelength < high_wavelength) && !(wavelength > low_wavelength);
    f = between ? (1.0F - smooth) * scaled / factor + smooth * scaled : scaled;
  }
}

}  // namespace

std::vector<float> rotary_frequencies(const ModelSpec& model) {
  const c10::InferenceMode no_autograd;
  const at::Tensor exponents = at::div(at::_to_copy(at::arange(0, model.head_dim, 2, at::kLong), at::kFloat), model.head_dim);
  const at::Tensor inverse = at::reciprocal(at::pow(model.rope.theta, exponents));
  std::vector<float> frequencies(inverse.const_data_ptr<float>(), inverse.const_data_ptr<float>() + inverse.numel());
  if (model.rope.type == "linear") {
    for (float& f : frequencies) f /= static_cast<float>(model.rope.factor);
  } else if (model.rope.type == "llama3") {
    scale_like_llama3(frequencies, model.rope);
  } else {
    CHECK(model.rope.type == "default", "the config reader refuses other kinds of rotary scaling");
  }
  return frequencies;
}

}  // namespace shardplan
