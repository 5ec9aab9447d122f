#include "core/hardware_spec.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/local_hardware.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kFolder = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "configs" / "hardware";

constexpr const char* kSmall = R"({
  "schema_version": 1, "id": "small", "name": "Small 1 GB", "device": "cuda", "compute_capability": "9.0",
  "memory": "1 GiB", "usable_memory": "1000000001 B", "bandwidth": "100 GB/s",
  "peak": {"bf16": "2 TFLOP/s", "fp32": "1 TFLOP/s"},
  "matmul_fraction": 0.5, "kernel_launch": "3 us",
  "intra_node": {"name": "near", "bandwidth": "10 GB/s", "latency": "1 us"},
  "inter_node": {"name": "far", "bandwidth": "1 GB/s", "latency": "2 us"},
  "host_link": {"name": "host", "bandwidth": "5 GB/s", "latency": 0},
  "devices_per_node": 4, "host_memory": "64 GiB",
  "context": {"low": "300 MB", "high": "400 MB"}, "communicator": {"low": 0, "high": "1 GB"},
  "rounding_bytes": 512,
  "device_names": ["Small"], "sources": {"bandwidth": "made up"}
})";

// kSmall with the value at `pointer` replaced, or taken away by a discarded value.
Json changed(const std::string& pointer, const Json& value) {
  Json document = json_from_text(kSmall, "small.json");
  document[Json::json_pointer(pointer)] = value;
  return document;
}

std::string error_of(const Json& document) {
  return thrown<ConfigError>([&] { (void)hardware_from_json(document, "small.json"); });
}

TEST(HardwareSpec, EveryKeyIsReadInBaseUnits) {
  const HardwareSpec expected{.id = "small",
                              .name = "Small 1 GB",
                              .device = DeviceKind::Cuda,
                              .compute_capability = "9.0",
                              .usable_memory_bytes = 1'000'000'001,
                              .memory_bytes_per_second = 100e9,
                              .peak_flops_per_second = {{DType::F32, 1e12}, {DType::BF16, 2e12}},
                              .matmul_fraction = 0.5,
                              .kernel_launch_seconds = 3e-6,
                              .intra_node = {.name = "near", .bytes_per_second = 10e9, .latency_seconds = 1e-6},
                              .inter_node = {.name = "far", .bytes_per_second = 1e9, .latency_seconds = 2e-6},
                              .host_link = {.name = "host", .bytes_per_second = 5e9, .latency_seconds = 0},
                              .devices_per_node = 4,
                              .host_memory_bytes = std::int64_t{64} << 30,
                              .context = {.low_bytes = 300'000'000, .high_bytes = 400'000'000},
                              .communicator = {.low_bytes = 0, .high_bytes = 1'000'000'000},
                              .rounding_bytes = 512};
  EXPECT_EQ(hardware_from_json(json_from_text(kSmall, "small.json"), "small.json"), expected);
}

TEST(HardwareSpec, WhatMakesNoSenseIsRefusedWithItsPlace) {
  EXPECT_EQ(error_of(changed("/schema_version", 2)),
            "hardware files of version 2 are not known\n  at: small.json#/schema_version\n  try: version 1");
  EXPECT_EQ(error_of(changed("/device", "tpu")), "no device is called \"tpu\"\n  at: small.json#/device\n  try: cuda or cpu");
  EXPECT_EQ(error_of(changed("/usable_memory", 0)), "\"usable_memory\" must be above 0\n  at: small.json#/usable_memory");
  EXPECT_EQ(error_of(changed("/usable_memory", "2 GiB")), "\"usable_memory\" is above \"memory\"\n  at: small.json#/usable_memory");
  EXPECT_EQ(error_of(changed("/bandwidth", 0)), "\"bandwidth\" must be at least 1 MB/s\n  at: small.json#/bandwidth");
  EXPECT_EQ(error_of(changed("/peak/fp8", "4 TFLOP/s")),
            "no peak is read for \"fp8\"\n  at: small.json#/peak/fp8\n  try: fp32, bf16, fp16 or fp64");
  EXPECT_EQ(error_of(changed("/peak/int64", "4 TFLOP/s")),
            "no peak is read for \"int64\"\n  at: small.json#/peak/int64\n  try: fp32, bf16, fp16 or fp64");
  EXPECT_EQ(error_of(changed("/peak", Json::object())),
            "a device has at least one peak\n  at: small.json#/peak\n  try: \"bf16\": \"989 TFLOP/s\"");
  EXPECT_EQ(error_of(changed("/peak/bf16", 0)), "the peak of \"bf16\" must be at least 1 GFLOP/s\n  at: small.json#/peak/bf16");
  EXPECT_EQ(error_of(changed("/matmul_fraction", 1.5)),
            "\"matmul_fraction\" must be at least 0.05 and at most 1\n  at: small.json#/matmul_fraction");
  EXPECT_EQ(error_of(changed("/intra_node/bandwidth", "10 B/s")),
            "\"bandwidth\" must be at least 1 MB/s\n  at: small.json#/intra_node/bandwidth");
  EXPECT_EQ(error_of(changed("/inter_node/latency", "2 s")),
            "\"latency\" must be at most 1 s\n  at: small.json#/inter_node/latency");
  EXPECT_EQ(error_of(changed("/kernel_launch", "4 s")), "\"kernel_launch\" must be at most 1 s\n  at: small.json#/kernel_launch");
  EXPECT_EQ(error_of(changed("/intra_node/latency", 5)),
            "expected a duration with its unit, found the number 5\n  at: small.json#/intra_node/latency\n  try: a text such as "
            "\"5 us\"");
  EXPECT_EQ(error_of(changed("/inter_node/bandwith", "1 GB/s")),
            "unknown key \"bandwith\"\n  at: small.json#/inter_node/bandwith\n  try: \"bandwidth\"");
  EXPECT_EQ(error_of(changed("/context/low", "1 GB")), "\"low\" is above \"high\"\n  at: small.json#/context/low");
  EXPECT_EQ(error_of(changed("/devices_per_node", 0)),
            "expected an integer of at least 1, found 0\n  at: small.json#/devices_per_node");
  EXPECT_EQ(error_of(changed("/sources/peak", 1)), "expected a text, found the number 1\n  at: small.json#/sources/peak");
  EXPECT_EQ(error_of(changed("/usable_memroy", 1)),
            "unknown key \"usable_memroy\"\n  at: small.json#/usable_memroy\n  try: \"usable_memory\"");
}

TEST(HardwareById, LettersAndDigitsAloneCount) {
  for (const char* spelling : {"h100-80g", "H100-80G", "h10080g", "H100 80G"})
    EXPECT_EQ(hardware_by_id(kFolder, spelling).id, "h100-80g");
}

TEST(HardwareById, UnknownIdsNameTheNearest) {
  EXPECT_EQ(thrown<UsageError>([] { (void)hardware_by_id(kFolder, "h100"); }),
            "no hardware is called \"h100\"\n  at: " + kFolder.string() + "\n  try: h100-80g, h100-96g, h100-pcie-80g");
  EXPECT_EQ(thrown<UsageError>([] { (void)hardware_by_id(kFolder, "rtx4900-24g"); }),
            "no hardware is called \"rtx4900-24g\"\n  at: " + kFolder.string() + "\n  try: rtx4090-24g");
  const std::string all = thrown<UsageError>([] { (void)hardware_by_id(kFolder, "abacus"); });
  for (const std::string& id : hardware_ids(kFolder)) EXPECT_NE(all.find(id), std::string::npos) << id;
}

TEST(HardwareById, AMissingFolderIsNamed) {
  EXPECT_EQ(thrown<IoError>([] { (void)hardware_ids("/nowhere"); }),
            "cannot list the hardware files: No such file or directory\n  at: /nowhere");
}

// Every number of a shipped file has a source under its own key; nothing else has one.
void expect_sources(const Json& document) {
  std::set<std::string> numbers;
  for (const auto& [key, value] : document.items()) {
    if (std::set<std::string>{"schema_version", "id", "name", "device", "compute_capability", "sources"}.contains(key)) continue;
    const bool is_link = value.is_object() && value.contains("latency");
    for (const char* part : {"bandwidth", "latency"}) {
      if (is_link) numbers.insert(key + "." + part);
    }
    if (!is_link) numbers.insert(key);
  }
  for (const auto& [key, text] : document.at("sources").items()) {
    EXPECT_EQ(numbers.erase(key), 1U) << document.at("id") << ": a source for " << key;
    EXPECT_GT(text.get<std::string>().size(), 5U) << document.at("id") << " " << key;
  }
  EXPECT_TRUE(numbers.empty()) << document.at("id") << ": no source for " << *numbers.begin();
}

TEST(ShippedHardware, EveryFileReadsIsNamedByItsIdAndGivesASourceForEveryNumber) {
  const std::vector<std::string> ids = hardware_ids(kFolder);
  ASSERT_EQ(ids.size(), 22U);
  for (const std::string& id : ids) {
    const Json document = json_from_file(kFolder / (id + ".json"));
    const HardwareSpec spec = hardware_from_json(document, id);
    EXPECT_EQ(spec.id, id);
    EXPECT_EQ(spec.device, DeviceKind::Cuda);
    EXPECT_TRUE(spec.peak_flops_per_second.contains(DType::F32)) << id;
    expect_sources(document);
  }
}

TEST(ShippedHardware, UsableMemorySurvivesToTheByte) {
  EXPECT_EQ(hardware_by_id(kFolder, "h100-80g").usable_memory_bytes, 85'018'877'624);
  EXPECT_EQ(hardware_by_id(kFolder, "rtx4090-24g").usable_memory_bytes, 25'393'994'138);
}

TEST(LocalCpu, RanksShareMainMemoryAndNothingIsRounded) {
  const HardwareSpec spec = local_cpu_hardware();
  EXPECT_EQ(spec.device, DeviceKind::Cpu);
  EXPECT_GE(spec.devices_per_node, 1);
  EXPECT_EQ(spec.usable_memory_bytes, spec.host_memory_bytes / spec.devices_per_node);
  EXPECT_GT(spec.usable_memory_bytes, std::int64_t{64} << 20);
  EXPECT_EQ(spec.rounding_bytes, 1);
  EXPECT_EQ(spec.context, ByteRange{});
  EXPECT_EQ(spec.communicator, ByteRange{});
}

TEST(LocalGpus, LinesOfTheDriversToolAreRead) {
  const std::int64_t mib = 1 << 20;
  const std::vector<LocalGpu> expected = {{"NVIDIA H100 80GB HBM3", 81559 * mib}, {"Tesla T4", 15360 * mib}};
  EXPECT_EQ(gpus_from_nvidia_smi("NVIDIA H100 80GB HBM3, 81559 MiB\nTesla T4, 15360 MiB\n"), expected);
  EXPECT_TRUE(gpus_from_nvidia_smi("").empty());
  EXPECT_TRUE(
      gpus_from_nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n\nNo devices, none\n").empty());
}

TEST(LocalGpus, AreFoundByNameAndCounted) {
  const std::int64_t mib = 1 << 20;
  const LocalGpu t4{"Tesla T4", 15360 * mib};
  const HardwareSpec spec = hardware_of_gpus(kFolder, {t4, t4, t4});
  EXPECT_EQ(spec.id, "t4-16g");
  EXPECT_EQ(spec.devices_per_node, 3);
  EXPECT_EQ(spec.host_memory_bytes, local_cpu_hardware().host_memory_bytes);
}

TEST(LocalGpus, UnknownOrMixedOnesAreRefused) {
  const std::int64_t gib = std::int64_t{1} << 30;
  const LocalGpu odd{"NVIDIA Abacus", 16 * gib};
  EXPECT_EQ(thrown<UsageError>([&] { (void)hardware_of_gpus(kFolder, {odd}); }),
            "no hardware file is for this machine's \"NVIDIA Abacus\" with 16.00 GiB\n  at: " + kFolder.string() +
                "\n  try: --hardware FILE with its figures (configs/README.md), or --hardware local-cpu");
  EXPECT_EQ(thrown<UsageError>([&] {
              (void)hardware_of_gpus(kFolder, {odd, {"Tesla T4", 15 * gib}});
            }),
            "this machine has GPUs of different kinds: \"NVIDIA Abacus\" and \"Tesla T4\"\n  at: nvidia-smi\n  try: --gpu NAME for "
            "the smaller one");
  // A part of a board, or a board of another size, is not the board of the file.
  EXPECT_EQ(thrown<UsageError>([&] {
              (void)hardware_of_gpus(kFolder, {{"Tesla T4", 8 * gib}});
            }),
            "no hardware file is for this machine's \"Tesla T4\" with 8.00 GiB\n  at: " + kFolder.string() +
                "\n  try: --hardware FILE with its figures (configs/README.md), or --hardware local-cpu");
}

// A folder that stands for PATH while it lives, with the driver's tool as a script of ours, or without it.
class FakeDriver {
 public:
  explicit FakeDriver(const std::string& script) : old_path_(std::getenv("PATH")) {
    folder_ = std::filesystem::temp_directory_path() / ("shardplan_fake_driver_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    if (!script.empty()) {
      std::ofstream(folder_ / "nvidia-smi") << "#!/bin/sh\n" << script << "\n";
      std::filesystem::permissions(folder_ / "nvidia-smi", std::filesystem::perms::owner_all);
    }
    ::setenv("PATH", folder_.c_str(), 1);
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver() {
    ::setenv("PATH", old_path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

 private:
  std::string old_path_;
  std::filesystem::path folder_;
};

TEST(LocalHardware, IsTheGpusThatTheDriverShows) {
  const FakeDriver driver("echo 'Tesla T4, 15360 MiB'; echo 'Tesla T4, 15360 MiB'");
  const HardwareSpec spec = local_hardware(kFolder);
  EXPECT_EQ(spec.id, "t4-16g");
  EXPECT_EQ(spec.devices_per_node, 2);
}

TEST(LocalHardware, IsTheCpuRanksWithoutDriverOrWithoutGpu) {
  {
    const FakeDriver none("");
    EXPECT_EQ(local_hardware(kFolder), local_cpu_hardware());
  }
  const FakeDriver failing("echo 'NVIDIA-SMI has failed, because it could not communicate with the driver'; exit 9");
  EXPECT_EQ(local_hardware(kFolder), local_cpu_hardware());
}

}  // namespace
}  // namespace shardplan
