// Files written whole or not at all: to a temporary sibling, flushed to disk, then renamed over the target.
//
// Errors: IoError naming the file and the operating system's reason; the target is then as it was before.
#pragma once

#include <filesystem>
#include <string_view>

namespace shardplan {

void write_file_whole(const std::filesystem::path& file, std::string_view content);

// Fails early, before work is spent: can a file be created there? IoError when not.
void require_writable(const std::filesystem::path& file);

}  // namespace shardplan
