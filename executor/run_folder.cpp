#include "executor/run_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_files.h"
#include "core/json_reader.h"
#include "core/write_file.h"

namespace shardplan {

RunFolder::RunFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error)
    throw IoError(fmt::format("cannot create the run folder: {}", error.message()), folder_.string(), "name another --out");
  const std::filesystem::path file = folder_ / "metrics.jsonl";
  metrics_ = std::fopen(file.c_str(), "we");
  if (metrics_ == nullptr)
    throw IoError(fmt::format("cannot create file: {}", std::strerror(errno)), file.string(), "name another --out");
}

RunFolder::~RunFolder() { std::fclose(metrics_); }

void RunFolder::set_status(const RunStatus& status) {
  nlohmann::ordered_json document = {{"schema_version", 1},   {"kind", "shardplan.run"},           {"plan_hash", status.plan_hash},
                                     {"state", status.state}, {"phase", phase_name(status.phase)}, {"step", status.step},
                                     {"steps", status.steps}, {"process_id", status.process_id},   {"ranks", status.ranks}};
  if (!status.message.empty()) document["message"] = status.message;
  write_file_whole(folder_ / "run.json", document.dump(2) + "\n");
}

void RunFolder::add_metrics(const StepMetrics& m) {
  const auto or_null = [](const std::optional<std::int64_t>& v) {
    return v ? nlohmann::ordered_json(*v) : nlohmann::ordered_json(nullptr);
  };
  const nlohmann::ordered_json line = {{"step", m.step},
                                       {"loss", m.loss},
                                       {"grad_norm", m.grad_norm},
                                       {"learning_rate", m.learning_rate},
                                       {"tokens_per_second_per_gpu", m.tokens_per_second_per_gpu},
                                       {"peak_requested_bytes", m.peak_requested_bytes},
                                       {"peak_allocated_bytes", or_null(m.peak_allocated_bytes)},
                                       {"peak_reserved_bytes", or_null(m.peak_reserved_bytes)},
                                       {"targets", m.targets},
                                       {"seconds", m.seconds},
                                       {"cpu_seconds", m.cpu_seconds}};
  add_line(line.dump());
}

void RunFolder::add_evaluation(std::int64_t step, double loss, std::int64_t targets) {
  add_line(nlohmann::ordered_json{{"event", "eval"}, {"step", step}, {"loss", loss}, {"targets", targets}}.dump());
}

void RunFolder::add_line(const std::string& line) {
  if (std::fprintf(metrics_, "%s\n", line.c_str()) < 0 || std::fflush(metrics_) != 0) {
    throw IoError(fmt::format("cannot write file: {}", std::strerror(errno)), (folder_ / "metrics.jsonl").string(),
                  "make room on the disk or name another --out");
  }
}

void RunFolder::write_timeline(const Timeline& measured) {
  write_file_whole(folder_ / "timeline.json", json_from_timeline(measured).dump(1) + "\n");
}

void RunFolder::write_report(const std::string& report) { write_file_whole(folder_ / "report.json", report); }

void note_failure(const std::filesystem::path& folder, const std::string& message) {
  const std::filesystem::path file = folder / "run.json";
  if (!std::filesystem::exists(file)) return;
  nlohmann::ordered_json document = json_from_file(file);
  if (document.value("state", "") != "running") return;
  document["state"] = "failed";
  document["message"] = message;
  write_file_whole(file, document.dump(2) + "\n");
}

}  // namespace shardplan
