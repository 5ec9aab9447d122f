#include "core/write_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"

namespace shardplan {
namespace {

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& file, int reason) {
  throw IoError(what + ": " + std::strerror(reason), file.string(), "check that the folder exists, is writable and has free space");
}

// Unique per process, so that two ranks writing one file do not share a half-written sibling.
std::filesystem::path sibling_of(const std::filesystem::path& file) {
  std::filesystem::path sibling = file;
  sibling += ".partial." + std::to_string(::getpid());
  return sibling;
}

// Closes and, unless kept, removes the sibling.
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path file)
      : path_(std::move(file)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {}
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    if (!kept_) ::unlink(path_.c_str());
  }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  int descriptor_;
  bool kept_ = false;
};

// 0, or the reason why not everything was written.
int write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// The rename itself is durable only once the folder is on disk; a file system that cannot sync folders is no error.
void sync_folder(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

void write_file_whole(const std::filesystem::path& file, std::string_view content) {
  PartialFile partial(sibling_of(file));
  if (partial.descriptor() < 0) fail("cannot create the file", file, errno);
  if (const int reason = write_all(partial.descriptor(), content); reason != 0) fail("cannot write the file", file, reason);
  if (::fsync(partial.descriptor()) != 0) fail("cannot flush the file to disk", file, errno);
  if (::rename(partial.path().c_str(), file.c_str()) != 0) fail("cannot put the file in place", file, errno);
  partial.keep();
  sync_folder(file);
}

void require_writable(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) fail("cannot create the file", file, EISDIR);
  const PartialFile probe(sibling_of(file));
  if (probe.descriptor() < 0) fail("cannot create the file", file, errno);
}

}  // namespace shardplan
