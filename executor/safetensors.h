// The tensors of a Hugging Face model directory, mapped and read in place.
//
// model.safetensors, or the files named by model.safetensors.index.json. Opening checks every header and the index; it touches no
// tensor data. Pages of read data are the kernel's (file backed); release() lets them go. Errors: IoError when the system refuses;
// ConfigError naming file and tensor for what a header or index gets wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "executor/safetensors_header.h"

namespace shardplan {

// A file mapped read-only for as long as the object lives.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  [[nodiscard]] std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address_), length_}; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Drops the pages of a byte range; they are read again when touched.
  void release(std::int64_t begin_bytes, std::int64_t end_bytes) const;

 private:
  std::filesystem::path path_;
  void* address_ = nullptr;
  std::size_t length_ = 0;
};

class StoredModel {
 public:
  explicit StoredModel(const std::filesystem::path& directory);
  // Null when the model holds no such tensor.
  [[nodiscard]] const StoredTensor* find(const std::string& name) const;
  [[nodiscard]] std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  void release(const StoredTensor& tensor, std::int64_t begin_bytes, std::int64_t end_bytes) const;  // of the tensor's own data
  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }      // by name
  [[nodiscard]] std::string where(const StoredTensor& tensor) const;                                 // "file, tensor 'name'"
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

 private:
  void add_file(const std::filesystem::path& file);
  void read_index(const std::filesystem::path& index);
  std::filesystem::path directory_;
  std::vector<MappedFile> files_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace shardplan
