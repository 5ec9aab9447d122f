#include "planner/lowering/schedules/fsdp2_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

KernelWork copy_work(DType dtype, std::int64_t read_bytes, std::int64_t written_bytes) {
  return {.compute = ComputeClass::Copy, .dtype = dtype, .read_bytes = read_bytes, .written_bytes = written_bytes};
}

UnitId id_of(std::size_t unit) { return UnitId(static_cast<std::int64_t>(unit)); }

}  // namespace

Fsdp2Machine::Fsdp2Machine(const OpGraph& graph, const std::vector<Fsdp2Unit>& units, const Fsdp2Switches& switches,
                           ProgramBuilder& builder)
    : graph_(graph), plan_(units), switches_(switches), builder_(builder), units_(units.size()) {
  const std::size_t num_parameters = graph.table.parameters.size();
  full_.resize(num_parameters);
  smaller_.resize(num_parameters);
  gradient_.resize(num_parameters);
  accumulated_.resize(num_parameters);
}

// ---- sizes ----

std::int64_t Fsdp2Machine::padded_numel(ParameterId parameter) const {
  const std::vector<std::int64_t>& shape = graph_.table.parameters[parameter.at()].shape;
  const std::int64_t rows = shape.front();
  return graph_.table.parameters[parameter.at()].numel() / rows * (round_up(rows, switches_.mesh.shard) / switches_.mesh.shard);
}

std::int64_t Fsdp2Machine::valid_numel(ParameterId parameter) const {
  const std::vector<std::int64_t>& shape = graph_.table.parameters[parameter.at()].shape;
  const std::int64_t rows = shape.front(), chunk = round_up(rows, switches_.mesh.shard) / switches_.mesh.shard;
  const std::int64_t valid = std::clamp<std::int64_t>(rows - chunk * switches_.shard_rank, 0, chunk);
  return graph_.table.parameters[parameter.at()].numel() / rows * valid;
}

DType Fsdp2Machine::stored(ParameterId parameter) const {
  return switches_.stored_by_parameter.empty() ? switches_.stored : switches_.stored_by_parameter[parameter.at()];
}

DType Fsdp2Machine::compute(ParameterId parameter) const { return switches_.param_dtype.value_or(stored(parameter)); }

std::int64_t Fsdp2Machine::gathered_bytes(std::size_t unit) const {
  std::int64_t bytes = 0;
  for (const ParameterId p : plan_[unit].parameters) bytes += padded_numel(p) * switches_.mesh.shard * element_bytes(compute(p));
  return bytes;
}

// Shards kept in a smaller group are copied once more although they are cast already: the policy decides, not the data.
std::int64_t Fsdp2Machine::cast_bytes(std::size_t unit) const {
  const bool is_smaller = units_[unit].sharded == Sharded::SmallerShard;
  std::int64_t bytes = 0;
  for (const ParameterId p : plan_[unit].parameters) {
    if (compute(p) == stored(p)) continue;
    const std::int64_t numel =
        padded_numel(p) * (is_smaller ? switches_.mesh.shard : 1) / (is_smaller ? plan_[unit].reshard.degree : 1);
    bytes += numel * element_bytes(compute(p));
  }
  return bytes;
}

// Trained parameters of a unit share their dtypes.
ParameterId Fsdp2Machine::first_trained(std::size_t unit) const {
  for (const ParameterId p : plan_[unit].parameters)
    if (graph_.table.parameters[p.at()].trainable) return p;
  CHECK(false, "a unit with gradients trains a parameter");
}

DType Fsdp2Machine::reduce_dtype(std::size_t unit) const { return switches_.reduce_dtype.value_or(compute(first_trained(unit))); }

std::string Fsdp2Machine::named(std::string_view what, std::size_t unit) const {
  return fmt::format("{} {}", what, plan_[unit].name);
}

Buffer Fsdp2Machine::buffer(std::int64_t bytes, MemoryCategory category, StreamId pool, std::string label) const {
  return {.bytes = bytes, .category = category, .pool = pool, .label = std::move(label)};
}

BufferRole Fsdp2Machine::role(BufferUse use, std::size_t unit, ParameterId parameter) const {
  return {.use = use, .unit = id_of(unit), .parameter = parameter};
}

// ---- parameters ----

void Fsdp2Machine::place_parameters() {
  for (std::size_t u = 0; u < plan_.size(); ++u) {
    for (const ParameterId p : plan_[u].parameters)
      (void)builder_.resident(buffer(padded_numel(p) * element_bytes(stored(p)), MemoryCategory::ShardedParam, kComputeStream,
                                     fmt::format("{} shard", graph_.table.parameters[p.at()].name)),
                              role(BufferUse::ShardedParam, u, p));
  }
}

void Fsdp2Machine::begin_micro_step(std::int32_t micro_step, bool reduces) {
  micro_step_ = micro_step;
  reduces_ = reduces;
}

void Fsdp2Machine::unshard(std::size_t unit) {
  State& state = units_[unit];
  if (plan_[unit].parameters.empty() || state.gather_output.is_set() || state.sharded == Sharded::Full) return;
  if (switches_.mesh.shard == 1) return;  // the shard is copied when it is waited for
  state.gather = builder_.begin({.kind = TaskKind::Gather, .stream = kGatherStream, .micro_step = micro_step_, .unit = id_of(unit)},
                                named("gather of", unit));
  if (state.copied_out.is_set()) builder_.wait(state.copied_out);
  const std::int64_t cast = cast_bytes(unit), gathered = gathered_bytes(unit);
  BufferId input;
  if (cast > 0) {
    input = builder_.allocate(buffer(cast, MemoryCategory::AllGather, kGatherStream, named("cast shard of", unit)),
                              role(BufferUse::GatherInput, unit));
    builder_.kernel(copy_work(compute(plan_[unit].parameters.front()), 2 * cast, cast));
  }
  state.gather_output =
      builder_.allocate(buffer(gathered, MemoryCategory::AllGather, kGatherStream, named("gather output of", unit)),
                        role(BufferUse::GatherOutput, unit));
  builder_.collective({.kind = CollectiveKind::AllGather, .axis = kShardAxis, .bytes = gathered});
  if (input.is_set()) builder_.release(input);
  builder_.end();
}

// One shard: every parameter is cast or copied by itself.
void Fsdp2Machine::copy_shards(std::size_t unit) {
  BufferId cast;
  for (const ParameterId p : plan_[unit].parameters) {
    const std::int64_t bytes = padded_numel(p) * element_bytes(compute(p));
    BufferId next;
    if (compute(p) != stored(p))
      next = builder_.allocate(buffer(bytes, MemoryCategory::AllGather, kComputeStream, named("cast parameter of", unit)),
                               role(BufferUse::GatherInput, unit, p));
    if (cast.is_set()) builder_.release(cast);
    cast = next;
    full_[p.at()] = builder_.allocate(
        buffer(bytes, MemoryCategory::UnshardedParam, kComputeStream, fmt::format("{} full", graph_.table.parameters[p.at()].name)),
        role(BufferUse::GatheredParam, unit, p));
    builder_.kernel(copy_work(compute(p), padded_numel(p) * element_bytes(stored(p)), bytes));
  }
  if (cast.is_set()) builder_.release(cast);
}

void Fsdp2Machine::wait_for_unshard(std::size_t unit) {
  State& state = units_[unit];
  const bool copies = switches_.mesh.shard == 1 && state.sharded != Sharded::Full;
  if (plan_[unit].parameters.empty() || (!state.gather_output.is_set() && !copies)) return;
  state.copied_out =
      builder_.begin({.kind = TaskKind::Gather, .stream = kComputeStream, .micro_step = micro_step_, .unit = id_of(unit)},
                     named("copy-out of", unit));
  if (state.gather.is_set()) builder_.wait(state.gather);
  if (copies) {
    copy_shards(unit);
  } else {
    for (const ParameterId p : plan_[unit].parameters)
      full_[p.at()] = builder_.allocate(
          buffer(padded_numel(p) * switches_.mesh.shard * element_bytes(compute(p)), MemoryCategory::UnshardedParam, kComputeStream,
                 fmt::format("{} full", graph_.table.parameters[p.at()].name)),
          role(BufferUse::GatheredParam, unit, p));
    builder_.kernel(copy_work(compute(plan_[unit].parameters.front()), gathered_bytes(unit), gathered_bytes(unit)));
    for (const ParameterId p : plan_[unit].parameters) {
      if (smaller_[p.at()].is_set()) builder_.release(smaller_[p.at()]);
      smaller_[p.at()] = {};
    }
    if (state.training == Training::Forward) {
      // The output before this one goes when this wait returns.
      if (waiting_gather_output_.is_set()) builder_.release(waiting_gather_output_);
      waiting_gather_output_ = state.gather_output;
    } else {
      builder_.release(state.gather_output);
    }
    state.gather_output = {};
  }
  state.sharded = Sharded::Full;
  builder_.end();
}

void Fsdp2Machine::keep_smaller_shards(std::size_t unit) {
  for (const ParameterId p : plan_[unit].parameters) {
    const std::int64_t bytes = padded_numel(p) * switches_.mesh.shard / plan_[unit].reshard.degree * element_bytes(compute(p));
    smaller_[p.at()] = builder_.allocate(buffer(bytes, MemoryCategory::UnshardedParam, kComputeStream,
                                                fmt::format("{} smaller shard", graph_.table.parameters[p.at()].name)),
                                         role(BufferUse::GatheredParam, unit, p));
    builder_.kernel(copy_work(compute(p), bytes, bytes));
    builder_.release(full_[p.at()]);
    full_[p.at()] = {};
  }
}

void Fsdp2Machine::reshard(std::size_t unit) {
  State& state = units_[unit];
  const ReshardAfterForward& after = plan_[unit].reshard;
  const bool is_forward = state.training == Training::Forward;
  if (state.sharded != Sharded::Full || (is_forward && after.kind == ReshardAfterForward::Kind::Keep)) return;
  (void)builder_.begin({.kind = TaskKind::Free, .stream = kComputeStream, .micro_step = micro_step_, .unit = id_of(unit)},
                       named("reshard of", unit));
  if (is_forward && after.kind == ReshardAfterForward::Kind::Smaller) {
    keep_smaller_shards(unit);
    state.sharded = Sharded::SmallerShard;
  } else {
    for (const ParameterId p : plan_[unit].parameters) {
      builder_.release(full_[p.at()]);
      full_[p.at()] = {};
    }
    state.sharded = Sharded::Shard;
  }
  builder_.end();
}

// ---- forward hooks ----

void Fsdp2Machine::pre_forward(std::size_t unit) {
  units_[unit].training = Training::Forward;
  unshard(unit);
  wait_for_unshard(unit);
}

void Fsdp2Machine::post_forward(std::size_t unit) {
  if (plan_[unit].parameters.empty()) return;
  reshard(unit);
  units_[unit].forward_indices.push_back(static_cast<std::int32_t>(forward_order_.size()));
  forward_order_.push_back(unit);
  units_[unit].training = Training::Idle;
}

void Fsdp2Machine::end_forward() {
  if (!waiting_gather_output_.is_set()) return;
  (void)builder_.begin({.kind = TaskKind::Free, .micro_step = micro_step_, .unit = id_of(0)}, "free of the last gather output");
  builder_.release(waiting_gather_output_);
  waiting_gather_output_ = {};
  builder_.end();
}

// ---- backward hooks ----

void Fsdp2Machine::pre_backward(std::size_t unit) {
  if (plan_[unit].parameters.empty()) return;
  State& state = units_[unit];
  if (state.training == Training::PreBackward) return;
  state.training = Training::PreBackward;
  unshard(unit);
  wait_for_unshard(unit);
  prefetch_before(unit);
}

// The unit whose forward ended before this one's is gathered ahead, whether or not backward will reach it.
void Fsdp2Machine::prefetch_before(std::size_t unit) {
  State& state = units_[unit];
  if (state.forward_indices.empty()) return;
  const std::int32_t index = state.forward_indices.back();
  state.forward_indices.pop_back();
  if (index > 0) unshard(forward_order_[static_cast<std::size_t>(index) - 1]);
}

void Fsdp2Machine::hand_over(ParameterId parameter, BufferId buffer) {
  if (gradient_[parameter.at()].is_set()) {
    builder_.release(buffer);  // added in place
    return;
  }
  gradient_[parameter.at()] = buffer;
}

void Fsdp2Machine::post_backward(std::size_t unit) {
  State& state = units_[unit];
  if (plan_[unit].parameters.empty()) return;
  state.training = Training::PostBackward;
  bool has_gradient = false, adds = false;
  for (const ParameterId p : plan_[unit].parameters) {
    adds = adds || (accumulated_[p.at()].is_set() && gradient_[p.at()].is_set());
    has_gradient = has_gradient || gradient_[p.at()].is_set() || accumulated_[p.at()].is_set();
  }
  if (adds) {
    (void)builder_.begin({.kind = TaskKind::Backward, .micro_step = micro_step_}, named("sum of gradients of", unit));
    for (const ParameterId p : plan_[unit].parameters) {
      if (!accumulated_[p.at()].is_set() || !gradient_[p.at()].is_set()) continue;
      const std::int64_t bytes = builder_.program().buffers[accumulated_[p.at()].at()].bytes;
      builder_.kernel(copy_work(reduce_dtype(unit), 2 * bytes, bytes));
      builder_.release(gradient_[p.at()]);
      gradient_[p.at()] = {};
    }
    builder_.end();
  }
  reshard(unit);
  if (!reduces_) {
    widen_gradients(unit);
    return;
  }
  if (has_gradient) reduce(unit);
}

// Without a reduction the gradients stay, in the reduce dtype.
void Fsdp2Machine::widen_gradients(std::size_t unit) {
  bool widens = false;
  for (const ParameterId p : plan_[unit].parameters)
    widens = widens || (gradient_[p.at()].is_set() && reduce_dtype(unit) != compute(p));
  if (!widens) return;
  (void)builder_.begin({.kind = TaskKind::Backward, .micro_step = micro_step_}, named("widening of gradients of", unit));
  for (const ParameterId p : plan_[unit].parameters) {
    if (!gradient_[p.at()].is_set()) continue;
    const std::int64_t bytes = graph_.table.parameters[p.at()].numel() * element_bytes(reduce_dtype(unit));
    accumulated_[p.at()] = builder_.allocate(buffer(bytes, MemoryCategory::UnshardedGrad, kComputeStream,
                                                    fmt::format("{} gradient, widened", graph_.table.parameters[p.at()].name)),
                                             role(BufferUse::FullGrad, unit, p));
    builder_.kernel(copy_work(reduce_dtype(unit), bytes, bytes));
    builder_.release(gradient_[p.at()]);
    gradient_[p.at()] = {};
  }
  builder_.end();
}

void Fsdp2Machine::reduce(std::size_t unit) {
  State& state = units_[unit];
  const std::int32_t shard = switches_.mesh.shard;
  const DType reduce = reduce_dtype(unit);
  std::int64_t numel = 0;
  std::vector<BufferId> gradients;
  for (const ParameterId p : plan_[unit].parameters) {
    BufferId& gradient = accumulated_[p.at()].is_set() ? accumulated_[p.at()] : gradient_[p.at()];
    if (!gradient.is_set()) continue;
    gradients.push_back(gradient);
    gradient = {};
    numel += padded_numel(p) * shard;
  }

  (void)builder_.begin({.kind = TaskKind::Backward, .micro_step = micro_step_}, named("packing of gradients of", unit));
  if (last_reduction_.is_set()) builder_.wait(last_reduction_);
  if (reduce_input_.is_set()) builder_.release(reduce_input_);
  if (state.all_reduce_input.is_set()) builder_.release(state.all_reduce_input);
  state.all_reduce_input = {};
  const std::int64_t packed = numel * element_bytes(reduce);
  reduce_input_ = builder_.allocate(buffer(packed, MemoryCategory::ReduceScatter, kComputeStream, named("reduce input of", unit)),
                                    role(BufferUse::ReduceInput, unit));
  builder_.kernel(copy_work(reduce, packed, packed));
  // The loop over the gradients leaves its variable on the last one.
  BufferId last;
  if (shard > 1) {
    last = gradients.back();
    gradients.pop_back();
  }
  for (const BufferId gradient : gradients) builder_.release(gradient);
  builder_.end();
  const TaskId packing(static_cast<std::int64_t>(builder_.program().tasks.size()) - 1);

  const bool replicates = switches_.mesh.replicate > 1, adds = !state.sharded_gradients.empty();
  last_reduction_ = builder_.begin({.kind = TaskKind::ReduceScatter,
                                    .stream = kReduceStream,
                                    .micro_step = micro_step_,
                                    .unit = id_of(unit),
                                    .accumulate = adds && !replicates},
                                   named("reduce-scatter of", unit));
  builder_.wait(packing);
  const std::int64_t output_bytes = packed / shard;
  const DType kept = stored(first_trained(unit));
  const bool is_gradient = reduce == kept && !adds;  // the output itself becomes the gradient
  BufferId output =
      builder_.allocate(buffer(output_bytes, is_gradient ? MemoryCategory::ShardedGrad : MemoryCategory::ReduceScatter,
                               kReduceStream, named("reduce output of", unit)),
                        role(is_gradient ? BufferUse::ShardedGrad : BufferUse::ReduceOutput, unit));
  if (shard > 1)
    builder_.collective({.kind = CollectiveKind::ReduceScatter, .axis = kShardAxis, .bytes = packed});
  else
    builder_.kernel(copy_work(reduce, packed, packed));
  if (replicates) {
    builder_.end();
    last_reduction_ = builder_.begin(
        {.kind = TaskKind::AllReduce, .stream = kReduceStream, .micro_step = micro_step_, .unit = id_of(unit), .accumulate = adds},
        named("all-reduce of", unit));
    builder_.collective({.kind = CollectiveKind::AllReduce, .axis = kReplicateAxis, .bytes = output_bytes});
  }
  BufferId gradient = output;
  if (reduce != kept) {
    const std::int64_t bytes = numel / shard * element_bytes(kept);
    gradient = builder_.allocate(buffer(bytes, adds ? MemoryCategory::ReduceScatter : MemoryCategory::ShardedGrad, kReduceStream,
                                        named("sharded gradient of", unit)),
                                 role(adds ? BufferUse::ReduceOutput : BufferUse::ShardedGrad, unit));
    builder_.kernel(copy_work(kept, output_bytes, bytes));
    if (!replicates) builder_.release(output);
  }
  if (replicates && (reduce != kept || adds)) state.all_reduce_input = output;
  if (adds) {
    builder_.kernel(copy_work(kept, 2 * output_bytes, output_bytes));
    if (gradient != state.all_reduce_input) builder_.release(gradient);
  } else {
    state.sharded_gradients.push_back(gradient);
  }
  if (last.is_set()) builder_.release(last);
  builder_.end();
}

void Fsdp2Machine::finalize(std::size_t unit) {
  State& state = units_[unit];
  state.training = Training::Idle;
  state.forward_indices.clear();
  if (!state.gather_output.is_set() && !state.all_reduce_input.is_set()) return;
  (void)builder_.begin({.kind = TaskKind::Free, .micro_step = micro_step_, .unit = id_of(unit)}, named("end of backward of", unit));
  if (state.all_reduce_input.is_set()) builder_.release(state.all_reduce_input);
  state.all_reduce_input = {};
  // A gather that backward never waited for.
  if (state.gather_output.is_set()) builder_.release(state.gather_output);
  state.gather_output = {};
  builder_.end();
}

void Fsdp2Machine::end_backward() {
  for (std::size_t u = 0; u < plan_.size(); ++u) {
    if (units_[u].training != Training::PostBackward) post_backward(u);
    finalize(u);
  }
  forward_order_.clear();
  if (!reduce_input_.is_set()) return;
  (void)builder_.begin({.kind = TaskKind::Free, .micro_step = micro_step_}, "free of the last reduce input");
  if (last_reduction_.is_set()) builder_.wait(last_reduction_);
  builder_.release(reduce_input_);
  reduce_input_ = {};
  builder_.end();
}

void Fsdp2Machine::zero_gradients() {
  for (State& state : units_) {
    for (const BufferId gradient : state.sharded_gradients) builder_.release(gradient);
    state.sharded_gradients.clear();
  }
}

}  // namespace shardplan
