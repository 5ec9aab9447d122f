#include "simulator/cost_model.h"

#include <gtest/gtest.h>

#include "core/units.h"
#include "simulator/collectives.h"
#include "tests/simulator/hand_program.h"

namespace shardplan {
namespace {

HardwareSpec machine() {
  HardwareSpec spec = round_machine();
  spec.kernel_launch_seconds = 4e-6;
  return spec;
}

TEST(KernelTime, IsLaunchPlusTheLargerOfComputeAndBytes) {
  const HardwareSpec spec = machine();
  const std::int64_t flops = 3'000'000, bytes = 1'000'000;
  const double compute = static_cast<double>(flops) / (1e9 * spec.matmul_fraction), traffic = bytes / 1e9;
  ASSERT_GT(compute, traffic);
  KernelWork product{
      .compute = ComputeClass::Matmul, .dtype = DType::F32, .flops = flops, .read_bytes = bytes / 2, .written_bytes = bytes / 2};
  EXPECT_EQ(kernel_time(product, spec), nanoseconds_from_seconds(spec.kernel_launch_seconds + compute));
  product.flops = 1000;
  EXPECT_EQ(kernel_time(product, spec), nanoseconds_from_seconds(spec.kernel_launch_seconds + traffic));
}

TEST(KernelTime, OnlyProductsAndAttentionAreLimitedByFlops) {
  const KernelWork work{.flops = 1'000'000'000'000, .read_bytes = 1};
  for (const ComputeClass c : {ComputeClass::Elementwise, ComputeClass::Reduction, ComputeClass::Gather, ComputeClass::Copy}) {
    KernelWork other = work;
    other.compute = c;
    EXPECT_LT(kernel_time(other, machine()), std::chrono::milliseconds(1));
  }
  for (const ComputeClass c : {ComputeClass::Matmul, ComputeClass::Attention}) {
    KernelWork product = work;
    product.compute = c;
    EXPECT_GT(kernel_time(product, machine()), std::chrono::seconds(1));
  }
}

TEST(KernelTime, ADtypeWithoutPeakCountsAsFp32ThenAsTheLowest) {
  const auto time_at = [](DType dtype, std::map<DType, double> peaks) {
    HardwareSpec spec = round_machine();
    spec.peak_flops_per_second = std::move(peaks);
    return kernel_time({.compute = ComputeClass::Matmul, .dtype = dtype, .flops = 1'000'000}, spec);
  };
  const std::map<DType, double> both = {{DType::F32, 1e9}, {DType::F16, 8e9}};
  EXPECT_EQ(time_at(DType::BF16, both), time_at(DType::F32, both));
  EXPECT_EQ(time_at(DType::F32, {{DType::BF16, 4e9}, {DType::F16, 8e9}}), time_at(DType::BF16, {{DType::BF16, 4e9}}));
}

TEST(TaskTime, IsTheSumOfItsKernelsAndItsCollective) {
  StepProgram program = empty_program();
  const HardwareSpec spec = machine();
  Task task{.kind = TaskKind::ReduceScatter,
            .stream = StreamId(2),
            .kernels = {kernel(10), kernel(20)},
            .collective = CollectiveWork{.kind = CollectiveKind::ReduceScatter, .axis = AxisId(0), .bytes = 1000}};
  EXPECT_EQ(task_time(task, program.mesh, spec, 8), kernel_time(kernel(10), spec) + kernel_time(kernel(20), spec) +
                                                        collective_time(*task.collective, program.mesh[0], spec, 8));
  EXPECT_EQ(task_time({.kind = TaskKind::Free}, program.mesh, spec, 8).count(), 0);
}

}  // namespace
}  // namespace shardplan
