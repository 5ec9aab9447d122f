// Writes safetensors files piece by piece, whole or not at all.
//
// A file is laid out from its declarations, filled in any order through a temporary sibling, flushed and renamed over its name by
// finish(). A writer that is destroyed before leaves nothing behind. A model of more than `max_file_bytes` becomes several files
// and an index, in the layout of Hugging Face: model-00001-of-0000N.safetensors. Units: bytes. Errors: IoError naming the file and
// the reason; CHECK when a tensor is not filled exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/safetensors_header.h"

namespace shardplan {

class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path file, std::vector<TensorDeclaration> tensors);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();
  void write(const std::string& tensor, std::int64_t offset_bytes, std::span<const std::byte> data);
  void finish();

 private:
  void discard();
  std::filesystem::path file_, temporary_;
  std::map<std::string, StoredTensor> places_;
  std::map<std::string, std::int64_t> missing_bytes_;
  int descriptor_ = -1;
};

inline constexpr std::int64_t kMaxFileBytes = 5'000'000'000;  // what Hugging Face's tools split at

// All files of one model, tensors in the order given.
class ModelWriter {
 public:
  ModelWriter(std::filesystem::path directory, const std::vector<TensorDeclaration>& tensors,
              std::int64_t max_file_bytes = kMaxFileBytes);
  void write(const std::string& tensor, std::int64_t offset_bytes, std::span<const std::byte> data);
  void finish();

 private:
  std::filesystem::path directory_;
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, std::size_t> file_of_;
  std::vector<std::string> names_;
  std::int64_t total_bytes_ = 0;
};

}  // namespace shardplan
