// The errors a person can meet, and CHECK for our own bugs.
//
// Every error says what is wrong, where, and what to do; the exit code of the process follows from its type
// (docs/plan_command.md and docs/execute.md say what each code means to a script).
// A plan that does not fit is never an error: see planner/answers/answer.h, Infeasible.
#pragma once

#include <stdexcept>
#include <string>

namespace shardplan {

enum class ExitCode : int {
  Ok = 0,
  RuntimeFailure = 1,
  Usage = 2,
  NothingFits = 3,
  BadInput = 4,
  OutOfDeviceMemory = 5,
  ToleranceExceeded = 6,
  StoppedAtCheckpoint = 75,
};

// what() is up to three lines: what is wrong; "  at: " where; "  try: " what to do. Empty parts are left out.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string what, std::string where = "", std::string remedy = "");
  [[nodiscard]] ExitCode code() const { return code_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const std::string& remedy() const { return remedy_; }

 private:
  ExitCode code_;
  std::string problem_, where_, remedy_;
};

// A flag or argument that makes no sense. Exit code 2.
struct UsageError : Error {
  explicit UsageError(std::string what, std::string where = "", std::string remedy = "");
};
// A file whose content is malformed, contradictory or not supported. Exit code 4. `where` is "file" or "file#/json/pointer".
struct ConfigError : Error {
  explicit ConfigError(std::string what, std::string where = "", std::string remedy = "");
};
// The operating system refused to read or write. Exit code 1.
struct IoError : Error {
  explicit IoError(std::string what, std::string where = "", std::string remedy = "");
};
// A device, collective or peer failed at run time. Exit code 1.
struct DeviceError : Error {
  explicit DeviceError(std::string what, std::string where = "", std::string remedy = "");
};

// A broken law of our own. what() names the law and the line; exit code 1.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& law);
}

}  // namespace shardplan

// CHECK(condition, "law that must hold"): always on. The message is built only on failure. Replaces the one-argument macro of
// LibTorch's logging header, which comes first where both are included.
#undef CHECK
#define CHECK(condition, law)                                                                   \
  do {                                                                                          \
    if (!(condition)) ::shardplan::detail::check_failed(#condition, __FILE__, __LINE__, (law)); \
  } while (false)
