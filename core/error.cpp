#include "core/error.h"

#include <utility>

namespace shardplan {
namespace {

std::string three_lines(const std::string& problem, const std::string& where, const std::string& remedy) {
  std::string text = problem;
  if (!where.empty()) text += "\n  at: " + where;
  if (!remedy.empty()) text += "\n  try: " + remedy;
  return text;
}

}  // namespace

Error::Error(ExitCode code, std::string what, std::string where, std::string remedy)
    : std::runtime_error(three_lines(what, where, remedy)),
      code_(code),
      problem_(std::move(what)),
      where_(std::move(where)),
      remedy_(std::move(remedy)) {}

UsageError::UsageError(std::string what, std::string where, std::string remedy)
    : Error(ExitCode::Usage, std::move(what), std::move(where), std::move(remedy)) {}
ConfigError::ConfigError(std::string what, std::string where, std::string remedy)
    : Error(ExitCode::BadInput, std::move(what), std::move(where), std::move(remedy)) {}
IoError::IoError(std::string what, std::string where, std::string remedy)
    : Error(ExitCode::RuntimeFailure, std::move(what), std::move(where), std::move(remedy)) {}
DeviceError::DeviceError(std::string what, std::string where, std::string remedy)
    : Error(ExitCode::RuntimeFailure, std::move(what), std::move(where), std::move(remedy)) {}

namespace detail {

void check_failed(const char* condition, const char* file, int line, const std::string& law) {
  throw CheckFailure("broken law: " + law + "\n  condition: " + condition + "\n  at: " + file + ":" + std::to_string(line));
}

}  // namespace detail
}  // namespace shardplan
