#include "executor/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw IoError(fmt::format("cannot open file: {}", std::strerror(errno)), path_.string());
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    const std::string reason = S_ISREG(status.st_mode) ? std::strerror(errno) : "it is no regular file";
    ::close(file);
    throw IoError(fmt::format("cannot read file: {}", reason), path_.string());
  }
  length_ = static_cast<std::size_t>(status.st_size);
  if (length_ > 0) {
    address_ = ::mmap(nullptr, length_, PROT_READ, MAP_PRIVATE, file, 0);
    if (address_ == MAP_FAILED) {
      const int reason = errno;
      ::close(file);
      throw IoError(fmt::format("cannot map file: {}", std::strerror(reason)), path_.string());
    }
  }
  ::close(file);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}

MappedFile::~MappedFile() {
  if (address_ != nullptr) ::munmap(address_, length_);
}

void MappedFile::release(std::int64_t begin_bytes, std::int64_t end_bytes) const {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t first = begin_bytes / page * page;  // a page shared with a neighbour is merely read again
  if (address_ != nullptr && end_bytes > first) {
    ::madvise(static_cast<char*>(address_) + first, static_cast<std::size_t>(end_bytes - first), MADV_DONTNEED);
  }
}

StoredModel::StoredModel(const std::filesystem::path& directory) : directory_(directory) {
  const std::filesystem::path single = directory / "model.safetensors";
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    add_file(single);
  } else if (std::filesystem::exists(index)) {
    read_index(index);
  } else {
    throw ConfigError("no model.safetensors and no model.safetensors.index.json", directory.string(),
                      "name a directory with weights in safetensors form, or make one with `execute init`");
  }
}

void StoredModel::add_file(const std::filesystem::path& file) {
  MappedFile mapped(file);
  SafetensorsHeader header = header_from_bytes(mapped.bytes(), static_cast<std::int64_t>(mapped.bytes().size()), file.string());
  for (StoredTensor& t : header.tensors) {
    t.file = static_cast<std::int32_t>(files_.size());
    const std::string name = t.name;
    const auto [place, is_new] = tensors_.emplace(name, std::move(t));
    if (!is_new) {
      throw ConfigError(
          fmt::format("tensor '{}' stands in two files", name),
          fmt::format("{} and {}", files_[static_cast<std::size_t>(place->second.file)].path().string(), file.string()),
          "keep the file that the index names and remove the other");
    }
  }
  files_.push_back(std::move(mapped));
}

void StoredModel::read_index(const std::filesystem::path& index) {
  std::ifstream stream(index);
  std::stringstream text;
  text << stream.rdbuf();
  if (!stream) throw IoError(fmt::format("cannot read file: {}", std::strerror(errno)), index.string());
  // Parsed into a sorted map: an index may hold a hundred thousand names.
  const nlohmann::json document = nlohmann::json::parse(text.str(), nullptr, false);
  if (document.is_discarded() || !document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object()) {
    throw ConfigError("index of the checkpoint holds no object 'weight_map'", index.string(),
                      "copy or convert the checkpoint again");
  }
  std::map<std::string, std::string> file_of;
  std::set<std::string> files;
  for (const auto& [name, file] : document["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos ||
        !file.get<std::string>().ends_with(".safetensors")) {
      throw ConfigError(fmt::format("tensor '{}' is given to {}, which is no safetensors file beside the index", name, file.dump()),
                        fmt::format("{}#/weight_map", index.string()), "copy or convert the checkpoint again");
    }
    file_of[name] = file.get<std::string>();
    files.insert(file.get<std::string>());
  }
  for (const std::string& file : files) add_file(index.parent_path() / file);
  for (const auto& [name, file] : file_of) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || files_[static_cast<std::size_t>(found->second.file)].path().filename() != file) {
      throw ConfigError(fmt::format("index says that tensor '{}' is in {}, which does not hold it", name, file), index.string(),
                        "copy or convert the checkpoint again");
    }
  }
}

const StoredTensor* StoredModel::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::span<const std::byte> StoredModel::bytes(const StoredTensor& tensor) const {
  return files_[static_cast<std::size_t>(tensor.file)].bytes().subspan(
      static_cast<std::size_t>(tensor.begin_bytes), static_cast<std::size_t>(tensor.end_bytes - tensor.begin_bytes));
}

void StoredModel::release(const StoredTensor& tensor, std::int64_t begin_bytes, std::int64_t end_bytes) const {
  files_[static_cast<std::size_t>(tensor.file)].release(tensor.begin_bytes + begin_bytes, tensor.begin_bytes + end_bytes);
}

std::string StoredModel::where(const StoredTensor& tensor) const {
  return fmt::format("{}, tensor '{}'", files_[static_cast<std::size_t>(tensor.file)].path().string(), tensor.name);
}

}  // namespace shardplan
