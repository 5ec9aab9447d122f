// The run folder (--out): what the window and scripts read while a run goes on and after it.
//
// run.json is replaced whole; metrics.jsonl grows by one flushed line a step; timeline.json and report.json are written whole at
// the end. Only rank 0 has one. Errors: IoError naming the file; opening fails early when the folder cannot be written.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/step_program.h"
#include "core/timeline.h"

namespace shardplan {

struct RunStatus {
  std::string plan_hash;
  std::string state = "running";  // "running", "done", "stopped", "failed"
  Phase phase = Phase::Load;
  std::int64_t step = 0;        // steps done
  std::int64_t steps = 0;       // steps wanted
  std::int64_t process_id = 0;  // whom to send SIGTERM
  std::int32_t ranks = 1;
  std::string message;  // of a failure
};

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, learning_rate = 0;
  std::int64_t targets = 0;
  double seconds = 0, cpu_seconds = 0;  // cpu: all threads of rank 0
  double tokens_per_second_per_gpu = 0;
  std::int64_t peak_requested_bytes = 0;
  std::optional<std::int64_t> peak_allocated_bytes, peak_reserved_bytes;  // unset where the allocator knows no such thing (CPU)
};

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path folder);  // makes the folder; empties metrics.jsonl
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  void set_status(const RunStatus& status);
  void add_metrics(const StepMetrics& metrics);
  void add_evaluation(std::int64_t step, double loss, std::int64_t targets);
  void write_timeline(const Timeline& measured);
  void write_report(const std::string& report);
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

 private:
  void add_line(const std::string& line);
  std::filesystem::path folder_;
  std::FILE* metrics_ = nullptr;
};

// Marks a run that ended in an error; does nothing where no run was begun.
void note_failure(const std::filesystem::path& folder, const std::string& message);

}  // namespace shardplan
