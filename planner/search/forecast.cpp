#include "planner/search/forecast.h"

#include <algorithm>

#include "core/error.h"
#include "core/units.h"
#include "planner/lowering/memory_count.h"
#include "planner/search/step_clock.h"
#include "simulator/simulate.h"

namespace shardplan {
namespace {

SimulateOptions options_for(const Plan& plan, const HardwareSpec& hardware) {
  return {.synchronous = hardware.device == DeviceKind::Cpu,
          .record_memory = true,
          .ranks_per_node = (plan.mesh.world() + plan.num_nodes - 1) / plan.num_nodes};
}

std::int64_t middle(const ByteRange& range) { return range.low_bytes + (range.high_bytes - range.low_bytes) / 2; }

PhaseForecast phase_forecast(const StepProgram& program, const HardwareSpec& hardware) {
  const MemoryCount requested = count_memory(program);
  const std::int64_t rounding_bytes = allocator_rounding_bytes(hardware);
  MemoryCount allocated = rounding_bytes == 1 ? requested : count_memory(program, rounding_bytes);
  const std::int64_t workspace = workspace_bytes(hardware, program.phase);
  allocated.peak_bytes += workspace;
  allocated.at_peak[MemoryCategory::Workspace] += workspace;
  return {.phase = program.phase,
          .peak_requested_bytes = requested.peak_bytes,
          .peak_allocated_bytes = allocated.peak_bytes,
          .host_peak_bytes = requested.host_peak_bytes,
          .peak_task = allocated.peak_task.is_set() ? program.tasks[allocated.peak_task.at()].label : "",
          .at_peak = allocated.at_peak};
}

// Products of forward and backward: what a step must compute whatever is recomputed.
double model_flops(const StepProgram& program) {
  double flops = 0;
  for (const Task& task : program.tasks) {
    if (task.kind != TaskKind::Forward && task.kind != TaskKind::Backward) continue;
    for (const KernelWork& kernel : task.kernels) {
      if (kernel.compute == ComputeClass::Matmul || kernel.compute == ComputeClass::Attention)
        flops += static_cast<double>(kernel.flops);
    }
  }
  return flops;
}

std::int32_t num_micro_steps(const StepProgram& step) {
  std::int32_t last = 0;
  for (const Task& task : step.tasks) last = std::max(last, task.micro_step);
  return last + 1;
}

// Repeats the third of four micro-steps until there are `grad_accum`. For the clock: tasks are without effects.
StepProgram stretched(const StepProgram& step, std::int32_t grad_accum) {
  std::vector<std::int32_t> starts;
  for (std::size_t i = 0; i < step.tasks.size(); ++i)
    if (step.tasks[i].kind == TaskKind::Input) starts.push_back(static_cast<std::int32_t>(i));
  CHECK(starts.size() == StepClock::kMicroSteps, "a step is stretched from four micro-steps");
  StepProgram result{.phase = step.phase, .role = step.role, .mesh = step.mesh, .streams = step.streams};
  const auto copy = [&](std::int32_t from, std::int32_t to, std::int32_t shift, std::int32_t micro_steps) {
    for (std::int32_t t = from; t < to; ++t) {
      const Task& task = step.tasks[static_cast<std::size_t>(t)];
      Task& copied = result.tasks.emplace_back();
      copied.kind = task.kind;
      copied.stream = task.stream;
      copied.micro_step = task.micro_step < 0 ? task.micro_step : task.micro_step + micro_steps;
      copied.kernels = task.kernels;
      copied.collective = task.collective;
      for (const TaskId awaited : task.waits_on) {
        CHECK(shift == 0 || awaited.value >= starts[1], "a task waits for its own micro-step or the one before");
        copied.waits_on.emplace_back(awaited.value + shift);
      }
    }
  };
  const std::int32_t first = starts[2], last = starts[3], repeats = grad_accum - StepClock::kMicroSteps;
  copy(0, last, 0, 0);
  for (std::int32_t r = 1; r <= repeats; ++r) copy(first, last, r * (last - first), r);
  copy(last, static_cast<std::int32_t>(step.tasks.size()), repeats * (last - first), repeats);
  return result;
}

}  // namespace

std::int64_t binding_bytes(const Forecast& forecast, const HardwareSpec& hardware) {
  return hardware.device == DeviceKind::Cpu ? forecast.peak_requested_bytes : forecast.estimate.device.high_bytes;
}

std::int64_t allocator_rounding_bytes(const HardwareSpec& hardware) {
  return hardware.device == DeviceKind::Cpu ? 1 : hardware.rounding_bytes;
}

// Matrix products take one workspace per handle and stream from the allocator: 8,519,680 B, from compute capability 9.0 on 32 MiB.
// Our runtime runs products on one stream of one thread, and the Lt interface shares the workspace in the version that is linked.
// Source: pytorch/pytorch#95668; NVIDIA/Megatron-LM#6936.
std::int64_t workspace_bytes(const HardwareSpec& hardware, Phase phase) {
  if (hardware.device == DeviceKind::Cpu || phase == Phase::Load) return 0;
  const bool from_nine = hardware.compute_capability.size() > 3 || hardware.compute_capability >= "9";  // "9.0", "10.0"
  return from_nine ? std::int64_t{32} << 20 : 8519680;
}

DeviceEstimate device_estimate(std::int64_t allocated_bytes, const MeshDegrees& mesh, const HardwareSpec& hardware) {
  const std::int64_t communicators = (mesh.shard > 1) + (mesh.replicate > 1);  // one per axis that has ranks to talk to
  DeviceEstimate e;
  if (hardware.device == DeviceKind::Cuda) {
    e.context = hardware.context;
    e.communicators = {.low_bytes = communicators * hardware.communicator.low_bytes,
                       .high_bytes = communicators * hardware.communicator.high_bytes};
  }
  e.device.low_bytes = allocated_bytes + e.context.low_bytes + e.communicators.low_bytes;
  e.device.high_bytes = allocated_bytes + e.context.high_bytes + e.communicators.high_bytes;
  e.device_bytes = allocated_bytes + middle(e.context) + middle(e.communicators);
  return e;
}

Forecast forecast_plan(const Plan& plan, const Lowered& lowered, const HardwareSpec& hardware, std::int64_t capacity_bytes) {
  Forecast f;
  f.capacity_bytes = capacity_bytes;
  const StepProgram* step = nullptr;
  const PhaseForecast* peak = nullptr;
  for (const LoweredProgram& phase : lowered.phases) {
    f.phases.push_back(phase_forecast(phase.program, hardware));
    if (phase.program.phase == Phase::Step2) step = &phase.program;
  }
  CHECK(step != nullptr, "a lowered plan has a program for step 2");
  for (const PhaseForecast& phase : f.phases) {
    f.peak_requested_bytes = std::max(f.peak_requested_bytes, phase.peak_requested_bytes);
    f.host_peak_bytes = std::max(f.host_peak_bytes, phase.host_peak_bytes);
    if (peak == nullptr || phase.peak_allocated_bytes > peak->peak_allocated_bytes) peak = &phase;
  }
  f.peak_allocated_bytes = peak->peak_allocated_bytes;
  f.peak_phase = peak->phase;
  f.peak_task = peak->peak_task;
  f.estimate = device_estimate(f.peak_allocated_bytes, plan.mesh, hardware);
  f.device_bytes = f.estimate.device_bytes;
  f.by_category = peak->at_peak;
  f.by_category[MemoryCategory::CudaContext] += middle(f.estimate.context);
  f.by_category[MemoryCategory::Nccl] += middle(f.estimate.communicators);

  SimulateOptions options = options_for(plan, hardware);
  options.record_memory = false;
  StepProgram longer;
  if (num_micro_steps(*step) < plan.grad_accum) {
    longer = stretched(*step, plan.grad_accum);
    step = &longer;
  }
  const Timeline timeline = simulate(*step, hardware, options);
  f.step_seconds = seconds_from_nanoseconds(timeline.duration);
  const double tokens = static_cast<double>(plan.micro_batch * plan.grad_accum * plan.workload.seq_len);
  f.tokens_per_second_per_gpu = tokens / f.step_seconds;
  if (const auto rate = hardware.peak_flops_per_second.find(plan.workload.precision.compute);
      rate != hardware.peak_flops_per_second.end()) {
    f.model_flops_utilization_fraction = model_flops(*step) / rate->second / f.step_seconds;
  }
  for (const CollectiveTotal& total : timeline.collectives) {
    f.communication.push_back({.collective = total.kind,
                               .axis = total.axis,
                               .calls = total.calls,
                               .bytes_per_rank = total.bytes_per_rank,
                               .seconds = seconds_from_nanoseconds(total.busy),
                               .exposed_seconds = seconds_from_nanoseconds(total.exposed)});
  }
  return f;
}

std::vector<Timeline> timelines_of(const Plan& plan, const Lowered& lowered, const HardwareSpec& hardware) {
  std::vector<Timeline> result;
  for (const LoweredProgram& phase : lowered.phases)
    result.push_back(simulate(phase.program, hardware, options_for(plan, hardware)));
  return result;
}

}  // namespace shardplan
