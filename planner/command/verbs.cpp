#include "planner/command/verbs.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace shardplan {

std::string only_positional(const CommandLine& line, std::string_view what) {
  if (line.positionals.size() == 1) return line.positionals[0];
  if (line.positionals.empty())
    throw UsageError(fmt::format("plan {} needs a {}", verb_name(line.verb), what), "",
                     fmt::format("plan {} --help", verb_name(line.verb)));
  throw UsageError(fmt::format("plan {} takes one {}, found '{}' and '{}'", verb_name(line.verb), what, line.positionals[0],
                               line.positionals[1]),
                   "", fmt::format("plan {} --help", verb_name(line.verb)));
}

void print_result(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw IoError(fmt::format("the answer could not be written: {}", std::strerror(errno)), "standard output");
}

}  // namespace shardplan
