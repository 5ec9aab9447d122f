#include "executor/unit_tasks.h"

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

#include "executor/counting_allocator.h"

namespace shardplan {

MeshAxes mesh_axes(const StepProgram& program) {
  MeshAxes axes;
  for (std::size_t i = 0; i < program.mesh.size(); ++i) {
    if (program.mesh[i].degree == 1) continue;
    if (program.mesh[i].name == "shard") axes.shard = AxisId(static_cast<std::int64_t>(i));
    if (program.mesh[i].name == "replicate") axes.replicate = AxisId(static_cast<std::int64_t>(i));
  }
  return axes;
}

void gather_group(GroupState& group, const FlatGroup& layout, const RankState& state, const MeshAxes& mesh,
                  Collectives& collectives) {
  own_stretch(group.gathered_param, layout.stretch_numel, state.shard_index).copy_(group.sharded_param.flat);
  if (mesh.shard.is_set()) collectives.all_gather(mesh.shard, group.gathered_param.flat);
}

void zero_padding(const FlatBuffer& full, const FlatGroup& layout) {
  if (layout.padded_numel > layout.numel) full.flat.narrow(0, layout.numel, layout.padded_numel - layout.numel).zero_();
}

void keep_reduced_stretch(GroupState& group, const FlatGroup& layout, const RankState& state, bool adds) {
  const at::Tensor stretch = own_stretch(group.full_grad, layout.stretch_numel, state.shard_index);
  const at::Tensor& kept = group.sharded_grad.flat;
  if (!adds) {
    kept.copy_(stretch);
  } else if (kept.scalar_type() == stretch.scalar_type()) {
    kept.add_(stretch);
  } else {
    const AllocationScope scope(MemoryCategory::ReduceScatter);
    kept.add_(at::_to_copy(stretch, kept.scalar_type()));
  }
}

double gradient_norm(RankState& state, const std::vector<UnitLayout>& units, const MeshAxes& mesh, Collectives& collectives) {
  attach(state.norm_sum);
  double sum_of_squares = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t g = 0; g < units[u].groups.size(); ++g) {
      if (!units[u].groups[g].trainable) continue;
      const double norm =
          at::linalg_vector_norm(state.units[u][g].gradient().flat, 2, at::OptionalIntArrayRef{}, false, at::kFloat).item<float>();
      sum_of_squares += norm * norm;
    }
  }
  state.norm_sum.flat.fill_(sum_of_squares);
  if (mesh.shard.is_set()) collectives.all_reduce(mesh.shard, state.norm_sum.flat);
  const double norm = std::sqrt(state.norm_sum.flat.item<double>());
  detach(state.norm_sum);
  return norm;
}

void scale_gradients(RankState& state, const std::vector<UnitLayout>& units, double factor) {
  // On the host and in the gradients' dtype: a number, or a tensor to be cast, would be allocated in every call.
  float wide = static_cast<float>(factor);
  c10::BFloat16 bf16 = wide;
  c10::Half half = wide;
  const auto in_dtype_of = [&](const at::Tensor& gradient) {
    const at::ScalarType dtype = gradient.scalar_type();
    void* const number = dtype == at::kBFloat16 ? static_cast<void*>(&bf16)
                         : dtype == at::kHalf   ? static_cast<void*>(&half)
                                                : &wide;
    return at::from_blob(number, {}, dtype);
  };
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t g = 0; g < units[u].groups.size(); ++g) {
      if (!units[u].groups[g].trainable) continue;
      const at::Tensor& gradient = state.units[u][g].gradient().flat;
      gradient.mul_(in_dtype_of(gradient));
    }
  }
}

}  // namespace shardplan
