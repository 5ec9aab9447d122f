#include "executor/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/write_file.h"

namespace shardplan {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, int reason) {
  throw IoError(fmt::format("cannot write file: {}", std::strerror(reason)), file.string(),
                reason == ENOSPC || reason == EDQUOT ? "make room on the disk or name another --out" : "name another --out");
}

void write_fully(int descriptor, std::span<const std::byte> data, std::int64_t offset, const std::filesystem::path& file) {
  while (!data.empty()) {
    const ssize_t written = ::pwrite(descriptor, data.data(), data.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(file, errno);
    data = data.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path file, std::vector<TensorDeclaration> tensors)
    : file_(std::move(file)), temporary_(file_.string() + ".tmp") {
  HeaderLayout layout = layout_header(std::move(tensors), {{"format", "pt"}});
  for (StoredTensor& t : layout.tensors) {
    missing_bytes_[t.name] = t.end_bytes - t.begin_bytes;
    const std::string name = t.name;
    CHECK(places_.emplace(name, std::move(t)).second, "a file holds each tensor once");
  }
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) refuse(file_, errno);
  try {
    // Reserving the room now finds a full disk before any time is spent.
    const int reserved = ::posix_fallocate(descriptor_, 0, layout.file_bytes);
    if (reserved != 0) refuse(file_, reserved);
    write_fully(descriptor_, std::as_bytes(std::span(layout.prefix)), 0, file_);
  } catch (...) {
    discard();
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::discard() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
  descriptor_ = -1;
}

void SafetensorsWriter::write(const std::string& tensor, std::int64_t offset_bytes, std::span<const std::byte> data) {
  const StoredTensor& place = places_.at(tensor);
  CHECK(offset_bytes >= 0 && place.begin_bytes + offset_bytes + static_cast<std::int64_t>(data.size()) <= place.end_bytes,
        "a tensor's bytes stay in its place");
  write_fully(descriptor_, data, place.begin_bytes + offset_bytes, file_);
  missing_bytes_[tensor] -= static_cast<std::int64_t>(data.size());
}

void SafetensorsWriter::finish() {
  for (const auto& [name, missing] : missing_bytes_) CHECK(missing == 0, "every byte of a saved tensor is written once: " + name);
  if (::fsync(descriptor_) != 0) refuse(file_, errno);
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) refuse(file_, errno);
  ::close(descriptor_);
  descriptor_ = -1;
}

ModelWriter::ModelWriter(std::filesystem::path directory, const std::vector<TensorDeclaration>& tensors,
                         std::int64_t max_file_bytes)
    : directory_(std::move(directory)) {
  std::vector<std::vector<TensorDeclaration>> parts(1);
  std::int64_t part_bytes = 0;
  for (const TensorDeclaration& t : tensors) {
    std::int64_t bytes = element_bytes(t.dtype);
    for (const std::int64_t d : t.shape) bytes *= d;
    if (part_bytes + bytes > max_file_bytes && !parts.back().empty()) {
      parts.emplace_back();
      part_bytes = 0;
    }
    part_bytes += bytes;
    total_bytes_ += bytes;
    file_of_[t.name] = parts.size() - 1;
    parts.back().push_back(t);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    names_.push_back(parts.size() == 1 ? "model.safetensors"
                                       : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size()));
    files_.push_back(std::make_unique<SafetensorsWriter>(directory_ / names_.back(), std::move(parts[i])));
  }
}

void ModelWriter::write(const std::string& tensor, std::int64_t offset_bytes, std::span<const std::byte> data) {
  files_[file_of_.at(tensor)]->write(tensor, offset_bytes, data);
}

void ModelWriter::finish() {
  for (const auto& file : files_) file->finish();
  if (files_.size() == 1) return;
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_bytes_;
  nlohmann::json map = nlohmann::json::object();
  for (const auto& [name, file] : file_of_) map[name] = names_[file];
  index["weight_map"] = map;
  write_file_whole(directory_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace shardplan
