// What will happen under one plan: memory by phase and category, the process on the device, step time, collectives.
//
// Lowers the plan, counts every phase (requested, and with the allocator's rounding), and simulates the step. Leaves out: blocks
// that wait for another stream and the allocator's segments (active and reserved memory stay unset), fragmentation. The workspace
// of matrix products is part of allocated memory, a constant of library and device. The device estimate adds sourced ranges for the
// device context and for each communicator.
//
// Units: bytes, seconds. Source: docs/plan_command.md, "What the figures mean".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/hardware_spec.h"
#include "core/memory_category.h"
#include "core/timeline.h"
#include "planner/lowering/lowered_program.h"

namespace shardplan {

struct PhaseForecast {
  Phase phase = Phase::Step2;
  std::int64_t peak_requested_bytes = 0;
  std::int64_t peak_allocated_bytes = 0;  // each buffer rounded up to the allocator's granularity, and the workspace
  std::int64_t host_peak_bytes = 0;
  std::string peak_task;  // at the allocated peak; empty: before the first task
  CategoryBytes at_peak;  // adds up to peak_allocated_bytes
};

struct CommunicationLine {
  CollectiveKind collective = CollectiveKind::AllGather;
  std::string axis;
  std::int64_t calls = 0;
  std::int64_t bytes_per_rank = 0;
  double seconds = 0;
  double exposed_seconds = 0;  // while the compute stream had nothing to do but wait
};

// What the process holds on the device beyond the allocator, and the whole of it.
struct DeviceEstimate {
  ByteRange context;
  ByteRange communicators;        // all of them together
  ByteRange device;               // allocated peak and the two above
  std::int64_t device_bytes = 0;  // with the middle of both ranges
};

struct Forecast {
  std::vector<PhaseForecast> phases;      // load, step1, step2, eval, save
  std::int64_t peak_requested_bytes = 0;  // largest over phases
  std::int64_t peak_allocated_bytes = 0;
  Phase peak_phase = Phase::Step2;  // of the allocated peak
  std::string peak_task;
  CategoryBytes by_category;  // at the allocated peak, with context and communicators: adds up to device_bytes
  DeviceEstimate estimate;
  std::int64_t device_bytes = 0;
  std::int64_t capacity_bytes = 0;  // what the plan was allowed
  std::int64_t host_peak_bytes = 0;
  double step_seconds = 0;  // step 2
  double tokens_per_second_per_gpu = 0;
  std::optional<double> model_flops_utilization_fraction;  // forward and backward products over the peak of the compute dtype
  std::vector<CommunicationLine> communication;            // of step 2
};

// Bytes that must stay below the capacity: the high end of the device estimate; on CPU ranks the requested peak.
[[nodiscard]] std::int64_t binding_bytes(const Forecast& forecast, const HardwareSpec& hardware);

// Blocks of the allocator; CPU ranks are counted as requested.
[[nodiscard]] std::int64_t allocator_rounding_bytes(const HardwareSpec& hardware);

// Of matrix products, once they have run: inside allocated memory.
[[nodiscard]] std::int64_t workspace_bytes(const HardwareSpec& hardware, Phase phase);

[[nodiscard]] DeviceEstimate device_estimate(std::int64_t allocated_bytes, const MeshDegrees& mesh, const HardwareSpec& hardware);

// Of a long accumulation `lowered` may hold the first micro-steps (StepClock::kMicroSteps): those between the first two and the
// last need and do the same.
[[nodiscard]] Forecast forecast_plan(const Plan& plan, const Lowered& lowered, const HardwareSpec& hardware,
                                     std::int64_t capacity_bytes);

// Simulated Timelines of all phases, as `plan simulate` writes them.
[[nodiscard]] std::vector<Timeline> timelines_of(const Plan& plan, const Lowered& lowered, const HardwareSpec& hardware);

// The graph does not depend on how the model is sharded: plans of one batch shape share it.
struct SharedGraph {
  std::shared_ptr<const OpGraph> graph;
  Segments segments;
};
}  // namespace shardplan
