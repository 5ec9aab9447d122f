// Writes a randomly initialised checkpoint: a model to start from where no published weights are wanted.
//
// Every tensor is a pure function of (seed, its name): norm weights have mean 1 and standard deviation 0.1, all others mean 0 and
// the standard deviation given. Values are made in fp64, rounded to fp32, then to the checkpoint's dtype; a piece at a time, so
// that the largest tensor needs no room. Errors: IoError as of safetensors_writer.h.
#pragma once

#include <cstdint>
#include <filesystem>

#include "executor/safetensors_writer.h"
#include "planner/graph/model_spec.h"

namespace shardplan {

struct RandomInit {
  std::uint64_t seed = 7;
  double std_deviation = 0.02;  // of matrices and biases; the config's initializer_range unless given
  DType dtype = DType::F32;
  std::int64_t max_file_bytes = kMaxFileBytes;
};

// config.json goes with the weights, with their dtype.
void write_random_model(const ModelSpec& model, const std::filesystem::path& directory, const RandomInit& init);

}  // namespace shardplan
