#include "core/hardware_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/names.h"

namespace shardplan {
namespace {

constexpr std::int64_t kHardwareFormatVersion = 1;

// Bounds that no device comes near. They catch a wrong unit, and keep every modelled duration far below what nanoseconds in 64 bits
// hold.
constexpr double kLeastBytesPerSecond = 1e6, kLeastFlopsPerSecond = 1e9, kMostSeconds = 1, kLeastFraction = 0.05;

double bandwidth(JsonReader& r) {
  const double value = r.bytes_per_second("bandwidth");
  if (value < kLeastBytesPerSecond) r.fail("bandwidth", "\"bandwidth\" must be at least 1 MB/s");
  return value;
}

double short_time(JsonReader& r, const std::string& key) {
  const double value = r.seconds(key);
  if (value > kMostSeconds) r.fail(key, fmt::format("\"{}\" must be at most 1 s", key));
  return value;
}

LinkSpec link_from_json(JsonReader r) {
  LinkSpec link;
  link.name = r.string("name");
  link.bytes_per_second = bandwidth(r);
  link.latency_seconds = short_time(r, "latency");
  r.finish();
  return link;
}

ByteRange range_from_json(JsonReader r) {
  ByteRange range;
  range.low_bytes = r.bytes("low");
  range.high_bytes = r.bytes("high");
  if (range.low_bytes > range.high_bytes) r.fail("low", "\"low\" is above \"high\"");
  r.finish();
  return range;
}

std::map<DType, double> peak_from_json(JsonReader r) {
  std::map<DType, double> peak;
  for (const auto& [key, ignored] : r.raw().items()) {
    const std::optional<DType> dtype = dtype_from_name(key);
    if (!dtype || !is_floating(*dtype)) r.fail(key, fmt::format("no peak is read for \"{}\"", key), "fp32, bf16, fp16 or fp64");
    peak[*dtype] = r.flops_per_second(key);
    if (peak[*dtype] < kLeastFlopsPerSecond) r.fail(key, fmt::format("the peak of \"{}\" must be at least 1 GFLOP/s", key));
  }
  if (peak.empty()) r.fail("", "a device has at least one peak", "\"bf16\": \"989 TFLOP/s\"");
  r.finish();
  return peak;
}

DeviceKind device_from_json(JsonReader& r) {
  const std::string word = r.string("device");
  if (word == "cuda") return DeviceKind::Cuda;
  if (word == "cpu") return DeviceKind::Cpu;
  r.fail("device", fmt::format("no device is called \"{}\"", word), "cuda or cpu");
}

// Sources and device names are for people and for core/local_hardware; they are no part of the spec.
void check_texts(JsonReader& r) {
  if (r.has("sources")) {
    JsonReader sources = r.object("sources");
    for (const auto& [key, ignored] : sources.raw().items()) (void)sources.string(key);
  }
  if (r.has("device_names")) (void)r.strings("device_names");
  r.ignore("sources");
  r.ignore("device_names");
}

}  // namespace

HardwareSpec hardware_from_json(const nlohmann::ordered_json& document, const std::string& file) {
  JsonReader r(document, file);
  HardwareSpec spec;
  if (const std::int64_t version = r.integer("schema_version"); version != kHardwareFormatVersion)
    r.fail("schema_version", fmt::format("hardware files of version {} are not known", version),
           fmt::format("version {}", kHardwareFormatVersion));
  spec.id = r.string("id");
  spec.name = r.string("name");
  spec.device = device_from_json(r);
  spec.compute_capability = r.string_or("compute_capability", "");
  spec.usable_memory_bytes = r.bytes("usable_memory");
  if (spec.usable_memory_bytes <= 0) r.fail("usable_memory", "\"usable_memory\" must be above 0");
  if (r.has("memory") && r.bytes("memory") < spec.usable_memory_bytes)
    r.fail("usable_memory", "\"usable_memory\" is above \"memory\"");
  r.ignore("memory");
  spec.memory_bytes_per_second = bandwidth(r);
  spec.peak_flops_per_second = peak_from_json(r.object("peak"));
  spec.matmul_fraction = r.number_or("matmul_fraction", spec.matmul_fraction);
  if (!(spec.matmul_fraction >= kLeastFraction && spec.matmul_fraction <= 1))
    r.fail("matmul_fraction", "\"matmul_fraction\" must be at least 0.05 and at most 1");
  if (r.has("kernel_launch")) spec.kernel_launch_seconds = short_time(r, "kernel_launch");
  r.ignore("kernel_launch");
  spec.intra_node = link_from_json(r.object("intra_node"));
  spec.inter_node = link_from_json(r.object("inter_node"));
  spec.host_link = link_from_json(r.object("host_link"));
  spec.devices_per_node = static_cast<std::int32_t>(r.integer("devices_per_node", 1, 4096));
  if (r.has("host_memory")) spec.host_memory_bytes = r.bytes("host_memory");
  r.ignore("host_memory");
  spec.context = range_from_json(r.object("context"));
  spec.communicator = range_from_json(r.object("communicator"));
  spec.rounding_bytes = static_cast<std::int32_t>(r.integer("rounding_bytes", 1, 1 << 30));
  check_texts(r);
  r.finish();
  return spec;
}

HardwareSpec hardware_from_file(const std::filesystem::path& file) {
  return hardware_from_json(json_from_file(file), file.string());
}

std::vector<std::string> hardware_ids(const std::filesystem::path& folder) {
  std::vector<std::string> ids;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    if (entry.path().extension() == ".json") ids.push_back(entry.path().stem().string());
  }
  if (failure) throw IoError("cannot list the hardware files: " + failure.message(), folder.string());
  std::sort(ids.begin(), ids.end());
  return ids;
}

HardwareSpec hardware_by_id(const std::filesystem::path& folder, const std::string& id) {
  const std::vector<std::string> ids = hardware_ids(folder);
  const std::string wanted = letters_and_digits(id);
  for (const std::string& known : ids) {
    if (letters_and_digits(known) == wanted) return hardware_from_file(folder / (known + ".json"));
  }
  // An id that begins or holds what was asked ("h100") is nearer than any misspelling.
  std::vector<std::string> near;
  for (const std::string& known : ids) {
    if (!wanted.empty() && letters_and_digits(known).find(wanted) != std::string::npos) near.push_back(known);
  }
  if (near.empty()) {
    if (const std::string one = nearest(id, ids); !one.empty()) near.push_back(one);
  }
  if (near.empty()) near = ids;
  throw UsageError(fmt::format("no hardware is called \"{}\"", id), folder.string(), fmt::format("{}", fmt::join(near, ", ")));
}

}  // namespace shardplan
