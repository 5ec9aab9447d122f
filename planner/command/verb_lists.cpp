// `plan models`, `plan hardware`, `plan env`: what is known by name, and what a bug report needs.
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hardware_spec.h"
#include "core/local_hardware.h"
#include "core/units.h"
#include "planner/command/request_from_flags.h"
#include "planner/command/verbs.h"
#include "planner/graph/model_spec.h"
#include "planner/graph/parameter_table.h"

namespace shardplan {
namespace {

nlohmann::ordered_json document_of(std::string_view kind) { return {{"schema_version", 1}, {"kind", kind}}; }

std::string rate_text(double per_second, std::string_view unit, double scale) {
  return fmt::format("{:.0f} {}", per_second / scale, unit);
}

std::string hardware_details(const HardwareSpec& h) {
  std::string text = fmt::format("{}: {}\n", h.id, h.name);
  const auto row = [&](std::string_view name, const std::string& value) { text += fmt::format("  {:<28} {}\n", name, value); };
  row("usable memory", text_from_bytes(h.usable_memory_bytes));
  row("memory bandwidth", rate_text(h.memory_bytes_per_second, "GB/s", 1e9));
  for (const auto& [dtype, rate] : h.peak_flops_per_second)
    row(fmt::format("peak {}", dtype_name(dtype)), fmt::format("{:.2f} TFLOP/s", rate / 1e12));
  row("of which a product reaches", fmt::format("{:.0f} %", 100 * h.matmul_fraction));
  row("devices in a node", std::to_string(h.devices_per_node));
  for (const auto& [name, link] : {std::pair{"link inside a node", h.intra_node}, std::pair{"link across nodes", h.inter_node},
                                   std::pair{"link to the host", h.host_link}}) {
    row(name, fmt::format("{}, {}", link.name, rate_text(link.bytes_per_second, "GB/s", 1e9)));
  }
  row("host memory of a node", h.host_memory_bytes == 0 ? "not known" : text_from_bytes(h.host_memory_bytes));
  row("device context", fmt::format("{} to {}", text_from_bytes(h.context.low_bytes), text_from_bytes(h.context.high_bytes)));
  row("each communicator",
      fmt::format("{} to {}", text_from_bytes(h.communicator.low_bytes), text_from_bytes(h.communicator.high_bytes)));
  return text;
}

nlohmann::ordered_json hardware_json(const HardwareSpec& h) {
  nlohmann::ordered_json peaks = nlohmann::ordered_json::object();
  for (const auto& [dtype, rate] : h.peak_flops_per_second) peaks[std::string(dtype_name(dtype))] = rate;
  return {{"id", h.id},
          {"name", h.name},
          {"device", h.device == DeviceKind::Cuda ? "cuda" : "cpu"},
          {"usable_memory_bytes", h.usable_memory_bytes},
          {"memory_bytes_per_second", h.memory_bytes_per_second},
          {"peak_flops_per_second", peaks},
          {"devices_per_node", h.devices_per_node}};
}

}  // namespace

ExitCode run_models(const CommandLine& line, const Surroundings& around) {
  if (!line.positionals.empty()) throw UsageError(fmt::format("plan models takes no '{}'", line.positionals[0]), "", "plan models");
  nlohmann::ordered_json document = document_of("shardplan.models");
  std::string text = fmt::format("{:<24} {:<8} {:>10} {:>7} {:>7} {:>9} {:>9}\n", "name", "family", "parameters", "layers",
                                 "hidden", "vocab", "positions");
  for (const std::string& alias : model_aliases(around.configs / "models")) {
    const ModelSpec m = find_model(alias, around.configs / "models").spec;
    const std::int64_t numel = parameter_table(m).total_numel();
    text += fmt::format("{:<24} {:<8} {:>10} {:>7} {:>7} {:>9} {:>9}\n", alias, m.model_type, text_from_count(numel), m.num_layers,
                        m.hidden_size, m.vocab_size, m.max_position_embeddings);
    document["models"].push_back({{"name", alias},
                                  {"model_type", m.model_type},
                                  {"parameters", numel},
                                  {"layers", m.num_layers},
                                  {"hidden_size", m.hidden_size},
                                  {"vocab_size", m.vocab_size},
                                  {"max_position_embeddings", m.max_position_embeddings}});
  }
  print_result(line.has("json") ? document.dump(2) + "\n" : text);
  return ExitCode::Ok;
}

ExitCode run_hardware(const CommandLine& line, const Surroundings& around) {
  if (!line.positionals.empty()) {
    CommandLine named = line;
    named.given["hardware"] = {.values = {only_positional(line, "hardware id")}, .where = "plan hardware"};
    const HardwareSpec h = hardware_from_flags(named, around.configs, "");
    nlohmann::ordered_json document = document_of("shardplan.hardware");
    document["hardware"] = nlohmann::ordered_json::array({hardware_json(h)});
    print_result(line.has("json") ? document.dump(2) + "\n" : hardware_details(h));
    return ExitCode::Ok;
  }
  nlohmann::ordered_json document = document_of("shardplan.hardware");
  std::string text =
      fmt::format("{:<18} {:<26} {:>12} {:>12} {:>14} {:>8}\n", "id", "name", "usable", "bandwidth", "peak bf16", "per node");
  for (const std::string& id : hardware_ids(around.configs / "hardware")) {
    const HardwareSpec h = hardware_by_id(around.configs / "hardware", id);
    const auto bf16 = h.peak_flops_per_second.find(DType::BF16);
    text += fmt::format("{:<18} {:<26} {:>12} {:>12} {:>14} {:>8}\n", h.id, h.name, text_from_bytes(h.usable_memory_bytes),
                        rate_text(h.memory_bytes_per_second, "GB/s", 1e9),
                        bf16 == h.peak_flops_per_second.end() ? "-" : rate_text(bf16->second, "TFLOP/s", 1e12), h.devices_per_node);
    document["hardware"].push_back(hardware_json(h));
  }
  text += "local, local-cpu: the machine at hand (plan hardware local-cpu shows it)\n";
  print_result(line.has("json") ? document.dump(2) + "\n" : text);
  return ExitCode::Ok;
}

ExitCode run_env(const CommandLine& line, const Surroundings& around) {
  if (!line.positionals.empty()) throw UsageError(fmt::format("plan env takes no '{}'", line.positionals[0]), "", "plan env");
  // Read here to be shown; nothing else in the planner depends on them.
  constexpr std::array kShown = {"CUDA_VISIBLE_DEVICES",
                                 "PYTORCH_CUDA_ALLOC_CONF",
                                 "PYTORCH_ALLOC_CONF",
                                 "CUBLAS_WORKSPACE_CONFIG",
                                 "OMP_NUM_THREADS",
                                 "NCCL_DEBUG",
                                 "NCCL_ALGO",
                                 "NCCL_PROTO",
                                 "NCCL_SOCKET_IFNAME",
                                 "NCCL_P2P_DISABLE",
                                 "NCCL_IB_DISABLE",
                                 "SHARDPLAN_CONFIGS",
                                 "SHARDPLAN_TORCH_DIR"};
  nlohmann::ordered_json document = document_of("shardplan.env");
  document["version"] = SHARDPLAN_VERSION;
  document["compiler"] = __VERSION__;
  document["plan_format_version"] = kPlanFormatVersion;
  const std::filesystem::path bin = around.program.parent_path();
  document["configs"] = around.configs.lexically_relative(bin).string();
  for (const char* other : {"execute", "explore"})
    document["programs"][other] = std::filesystem::exists(bin / other) ? nlohmann::ordered_json(other) : nullptr;
  document["cpu_ranks"] = local_cpu_hardware().devices_per_node;
  document["nvidia_driver"] = std::filesystem::exists("/proc/driver/nvidia/version");
  for (const char* name : kShown) {
    const char* value = std::getenv(name);
    document["environment"][name] = value == nullptr ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(value);
  }
  if (line.has("json")) {
    print_result(document.dump(2) + "\n");
    return ExitCode::Ok;
  }
  std::string text = fmt::format("shardplan {}, plan format {}, compiler {}\n", SHARDPLAN_VERSION, kPlanFormatVersion, __VERSION__);
  text += fmt::format("configs beside the program: {}\n", document["configs"].get<std::string>());
  for (const char* other : {"execute", "explore"})
    text += fmt::format("{}: {}\n", other, document["programs"][other].is_null() ? "not built" : "beside the program");
  text += fmt::format("CPU ranks of this machine: {}\nNVIDIA driver: {}\n", document["cpu_ranks"].get<int>(),
                      document["nvidia_driver"].get<bool>() ? "loaded" : "none");
  for (const char* name : kShown) {
    const auto& value = document["environment"][name];
    text += fmt::format("{}={}\n", name, value.is_null() ? "(not set)" : value.get<std::string>());
  }
  print_result(text);
  return ExitCode::Ok;
}

}  // namespace shardplan
