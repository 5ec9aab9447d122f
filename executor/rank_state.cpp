#include "executor/rank_state.h"

#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>

#include "core/error.h"
#include "executor/rotary_tables.h"

namespace shardplan {
namespace {

// A tensor over a storage that has no memory yet. Requires: numel > 0.
FlatBuffer flat_buffer(std::int64_t numel, DType dtype, at::Device device) {
  const auto type = c10::scalarTypeToTypeMeta(torch_dtype(dtype));
  const auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), c10::GetAllocator(device.type()),
                       /*resizable=*/true);
  FlatBuffer buffer;
  buffer.flat = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), type);
  buffer.flat.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return buffer;
}

std::int64_t bytes_of(const FlatBuffer& buffer) { return buffer.flat.numel() * static_cast<std::int64_t>(buffer.flat.itemsize()); }

GroupState group_state(const FlatGroup& group, const Precision& p, std::int32_t shard_degree, at::Device device) {
  GroupState state;
  state.aliased = shard_degree == 1 && p.stored == p.compute;
  state.sharded_param = flat_buffer(group.stretch_numel, p.stored, device);
  state.gathered_param = state.aliased ? state.sharded_param : flat_buffer(group.padded_numel, p.compute, device);
  if (!group.trainable) return state;
  state.full_grad = flat_buffer(group.padded_numel, p.reduce, device);
  state.sharded_grad = flat_buffer(group.stretch_numel, p.stored, device);
  state.exp_avg = flat_buffer(group.stretch_numel, p.state, device);
  state.exp_avg_sq = flat_buffer(group.stretch_numel, p.state, device);
  return state;
}

}  // namespace

at::ScalarType torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return at::kFloat;
    case DType::BF16:
      return at::kBFloat16;
    case DType::F16:
      return at::kHalf;
    case DType::F64:
      return at::kDouble;
    case DType::I64:
      return at::kLong;
    case DType::I32:
      return at::kInt;
    case DType::U64:
      return at::kUInt64;
    case DType::U8:
      return at::kByte;
    case DType::Bool:
      return at::kBool;
  }
  CHECK(false, "the list of dtypes is closed");
}

RankState make_rank_state(const Plan& plan, const Lowered& lowered, at::Device device, std::int32_t shard_index) {
  const c10::InferenceMode no_autograd;
  RankState state{.device = device, .shard_index = shard_index};
  for (const UnitLayout& unit : lowered.units) {
    std::vector<GroupState>& groups = state.units.emplace_back();
    for (const FlatGroup& group : unit.groups)
      groups.push_back(group_state(group, plan.workload.precision, plan.mesh.shard, device));
  }
  state.step_counter = flat_buffer(1, DType::F32, device);
  state.norm_sum = flat_buffer(1, DType::F64, device);
  state.inverse_frequencies = rotary_frequencies(model_of(plan));
  for (const Storage& storage : lowered.graph->storages)
    if (storage.role == StorageRole::Buffer)
      state.constants.push_back(flat_buffer(storage.bytes / element_bytes(DType::F32), DType::F32, device));
  return state;
}

void attach(FlatBuffer& buffer) {
  CHECK(buffer.flat.defined() && !buffer.attached, "a buffer is allocated once before it is freed");
  c10::StorageImpl* storage = buffer.flat.storage().unsafeGetStorageImpl();
  const std::int64_t bytes = bytes_of(buffer);
  storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<std::size_t>(bytes)));
  storage->set_nbytes(static_cast<std::size_t>(bytes));
  buffer.attached = true;
}

void detach(FlatBuffer& buffer) {
  CHECK(buffer.attached, "only what is allocated is freed");
  c10::StorageImpl* storage = buffer.flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
  buffer.attached = false;
}

at::Tensor own_stretch(const FlatBuffer& full, std::int64_t stretch_numel, std::int32_t shard_index) {
  return full.flat.narrow(0, stretch_numel * shard_index, stretch_numel);
}

}  // namespace shardplan
