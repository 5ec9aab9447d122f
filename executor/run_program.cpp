#include "executor/run_program.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <variant>

#include "core/error.h"
#include "executor/counting_allocator.h"
#include "executor/op_table.h"
#include "executor/optimizer.h"
#include "executor/recorder.h"
#include "executor/unit_tasks.h"
#include "planner/graph/ops.h"
#include "planner/graph/strides.h"

namespace shardplan {
namespace {

// One op as this phase runs it.
struct RunOp {
  OpId op;
  GradWrite grad = GradWrite::None;
  std::int32_t kernel = -1;
  at::Tensor slice;  // of the unit's flat gradient: AccumulateGrad, or an op that writes in place
  PackingScratch packing;
  bool makes_loss = false;
  std::int32_t first_result = 0, num_results = 0;  // range of Prepared::results
};

Value parameter_value(const Parameter& parameter) {
  Value value;
  value.sizes.rank = static_cast<std::int32_t>(parameter.shape.size());
  for (std::int32_t d = 0; d < value.sizes.rank; ++d) value.sizes[d] = parameter.shape[static_cast<std::size_t>(d)];
  value.strides = contiguous_strides(value.sizes);
  return value;
}

const LoweredProgram& phase_of(const Lowered& lowered, Phase phase) {
  for (const LoweredProgram& p : lowered.phases)
    if (p.program.phase == phase) return p;
  CHECK(false, fmt::format("the plan was lowered for phase {}", phase_name(phase)));
}

at::Tensor from_host(std::span<const std::int64_t> numbers, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<std::int64_t*>(numbers.data()), sizes, at::kLong);  // only read
}

}  // namespace

struct ProgramRunner::Prepared {
  Prepared(const Plan& plan, const Lowered& lowered, Phase phase, RankState& state);

  const Plan& plan;
  const Lowered& lowered;
  const OpGraph& graph;
  const LoweredProgram& lp;
  const StepProgram& program;
  RankState& state;
  MeshAxes mesh;
  std::vector<at::Tensor> values;                            // by ValueId
  std::vector<std::vector<std::int32_t>> values_of_storage;  // by StorageId; empty for parameters and constants
  std::vector<std::vector<RunOp>> ops;                       // by TaskId
  std::vector<ExpectedResult> results;
  std::vector<std::vector<std::vector<DecayRun>>> decay;  // by unit, group; optimizer phases only

  // Of one run.
  RankMachine* machine = nullptr;
  const StepInput* input = nullptr;
  StepScalars scalars;
  StepResult result;
  std::vector<at::Tensor> pieces;
  std::vector<float> micro_losses;
  at::Tensor host_losses;
  bool counted_step = false;

  void prepare_values();
  void prepare_ops();
  [[nodiscard]] at::Tensor gradient_slice(ParameterId parameter, const Value& layout) const;
  FlatBuffer* flat_of(const BufferRole& role);
  GroupState& group_of(const BufferRole& role) { return state.units[role.unit.at()][static_cast<std::size_t>(role.group)]; }

  void run_task(TaskId id);
  void run_compute(TaskId id, const Task& task);
  void run_one(const RunOp& run);
  void allocate(BufferId id);
  void free(BufferId id);
  void allocate_all(const Task& task);
  void free_all(const Task& task);
  void take_input(const Task& task);
  void reduce(const Task& task, const UnitBody& body, bool scatters);
  void optimizer_step(UnitId unit);
};

ProgramRunner::Prepared::Prepared(const Plan& p, const Lowered& l, Phase phase, RankState& s)
    : plan(p), lowered(l), graph(*l.graph), lp(phase_of(l, phase)), program(lp.program), state(s), mesh(mesh_axes(program)) {
  const c10::InferenceMode no_autograd;
  scalars.device = state.device;
  prepare_values();
  prepare_ops();
  for (const UnitLayout& unit : lowered.units) {
    auto& groups = decay.emplace_back();
    for (const FlatGroup& group : unit.groups)
      groups.push_back(decay_runs(group, graph.table, plan.workload.optimizer, state.shard_index));
  }
  micro_losses.assign(static_cast<std::size_t>(plan.grad_accum), 0.0F);
  host_losses = at::from_blob(micro_losses.data(), {plan.grad_accum}, at::kFloat);
}

// Parameters and constants are views of flat buffers, made once; all other values come and go.
void ProgramRunner::Prepared::prepare_values() {
  values.resize(graph.values.size());
  values_of_storage.resize(graph.storages.size());
  std::vector<std::int32_t> constant_of(graph.storages.size(), -1);
  std::int32_t num_constants = 0;
  for (std::size_t s = 0; s < graph.storages.size(); ++s)
    if (graph.storages[s].role == StorageRole::Buffer) constant_of[s] = num_constants++;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const Storage& storage = graph.storage(value.storage);
    if (storage.role == StorageRole::Parameter) {
      const ParameterPlace& place = lowered.places[storage.parameter.at()];
      const std::size_t group = static_cast<std::size_t>(place.group);
      const std::int64_t offset = lowered.units[place.unit.at()].groups[group].slots[static_cast<std::size_t>(place.slot)].offset;
      values[v] = view_of(state.units[place.unit.at()][group].gathered_param.flat, value, offset);
    } else if (storage.role == StorageRole::Buffer) {
      values[v] = view_of(state.constants[static_cast<std::size_t>(constant_of[value.storage.at()])].flat, value, 0);
    } else {
      values_of_storage[value.storage.at()].push_back(static_cast<std::int32_t>(v));
    }
  }
}

at::Tensor ProgramRunner::Prepared::gradient_slice(ParameterId parameter, const Value& layout) const {
  const ParameterPlace& place = lowered.places[parameter.at()];
  const std::size_t group = static_cast<std::size_t>(place.group);
  const std::int64_t offset = lowered.units[place.unit.at()].groups[group].slots[static_cast<std::size_t>(place.slot)].offset;
  return view_of(state.units[place.unit.at()][group].full_grad.flat, layout, offset);
}

void ProgramRunner::Prepared::prepare_ops() {
  ops.resize(program.tasks.size());
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    const Task& task = program.tasks[t];
    const auto* body = task.body.is_set() ? std::get_if<ComputeBody>(&lp.bodies[task.body.at()]) : nullptr;
    if (body == nullptr) continue;
    for (const BodyOp& b : body->ops) {
      const Op& op = graph.op(b.op);
      RunOp run{.op = b.op, .grad = b.grad, .kernel = b.kernel};
      const OpCost cost = op_cost(graph, b.op);
      run.packing = {cost.has_packing_scratch, cost.scratch_bytes};
      if (op.kind == OpKind::AccumulateGrad && b.grad != GradWrite::InPlace) {
        const ParameterId parameter = b.grad_target.is_set() ? b.grad_target : op.parameter;
        run.slice = gradient_slice(parameter, parameter_value(graph.table.parameters[parameter.at()]));
      } else if (op.kind != OpKind::AccumulateGrad && b.grad == GradWrite::InPlace) {
        run.slice = gradient_slice(b.grad_target, graph.value(op.outputs[0]));
      }
      for (const ValueId out : op.outputs) run.makes_loss = run.makes_loss || (out.is_set() && out == graph.loss);
      run.first_result = static_cast<std::int32_t>(results.size());
      for (const Effect& effect : task.effects) {
        const BufferRole& role = lp.roles[effect.buffer.at()];
        if (b.kernel < 0 || effect.kernel != b.kernel || effect.kind != EffectKind::Allocate || role.use != BufferUse::GraphStorage)
          continue;
        const Buffer& buffer = program.buffers[effect.buffer.at()];
        results.push_back({buffer.bytes, buffer.category});
      }
      run.num_results = static_cast<std::int32_t>(results.size()) - run.first_result;
      ops[t].push_back(std::move(run));
    }
  }
}

FlatBuffer* ProgramRunner::Prepared::flat_of(const BufferRole& role) {
  switch (role.use) {
    case BufferUse::ShardedParam:
      return &group_of(role).sharded_param;
    case BufferUse::GatheredParam:
      return &group_of(role).gathered_param;
    case BufferUse::FullGrad:
      return &group_of(role).full_grad;
    case BufferUse::ShardedGrad:
      return &group_of(role).sharded_grad;
    case BufferUse::ExpAvg:
      return &group_of(role).exp_avg;
    case BufferUse::ExpAvgSq:
      return &group_of(role).exp_avg_sq;
    case BufferUse::StepCounter:
      return &state.step_counter;
    case BufferUse::ConstantBuffer:
    case BufferUse::GraphStorage:
    case BufferUse::Scratch:
    case BufferUse::NormScalar:
    case BufferUse::Piece:
    case BufferUse::GatherInput:
    case BufferUse::GatherOutput:
    case BufferUse::ReduceInput:
    case BufferUse::ReduceOutput:
    case BufferUse::Temporary:
      return nullptr;
  }
  return nullptr;
}

void ProgramRunner::Prepared::allocate(BufferId id) {
  const BufferRole& role = lp.roles[id.at()];
  const Buffer& buffer = program.buffers[id.at()];
  const AllocationScope scope(buffer.category);
  if (FlatBuffer* flat = flat_of(role)) {
    attach(*flat);
    CHECK(static_cast<std::int64_t>(flat->flat.storage().nbytes()) == buffer.bytes,
          fmt::format("a flat buffer is as long as the program says: '{}' is {} bytes, predicted {}", buffer.label,
                      flat->flat.storage().nbytes(), buffer.bytes));
    if (role.use == BufferUse::FullGrad) {
      zero_padding(*flat, lowered.units[role.unit.at()].groups[static_cast<std::size_t>(role.group)]);
    } else if (role.use == BufferUse::ExpAvg || role.use == BufferUse::ExpAvgSq) {
      flat->flat.zero_();
    }
    return;
  }
  if (role.use == BufferUse::ConstantBuffer) {
    for (FlatBuffer& constant : state.constants) {
      if (constant.attached) continue;
      attach(constant);
      constant.flat.copy_(at::from_blob(state.inverse_frequencies.data(), {constant.flat.numel()}, at::kFloat));
      return;
    }
  }
  if (role.use == BufferUse::Piece) pieces.push_back(at::empty({buffer.bytes}, at::TensorOptions(at::kByte).device(state.device)));
}

void ProgramRunner::Prepared::free(BufferId id) {
  const BufferRole& role = lp.roles[id.at()];
  if (role.use == BufferUse::GraphStorage) {
    for (const std::int32_t v : values_of_storage[role.storage.at()]) values[static_cast<std::size_t>(v)].reset();
  } else if (FlatBuffer* flat = flat_of(role)) {
    detach(*flat);
  } else if (role.use == BufferUse::Piece) {
    pieces.clear();
  }
}

void ProgramRunner::Prepared::allocate_all(const Task& task) {
  for (const Effect& e : task.effects)
    if (e.kind == EffectKind::Allocate) allocate(e.buffer);
}

void ProgramRunner::Prepared::free_all(const Task& task) {
  for (const Effect& e : task.effects)
    if (e.kind == EffectKind::Free) free(e.buffer);
}

void ProgramRunner::Prepared::run_one(const RunOp& run) {
  const Op& op = graph.op(run.op);
  if (op.kind == OpKind::AccumulateGrad) {
    if (run.grad == GradWrite::Copy) run.slice.copy_(values[op.inputs[0].at()]);
    if (run.grad == GradWrite::Add) run.slice.add_(values[op.inputs[0].at()]);
    return;
  }
  if (run.kernel < 0) return run_op(graph, op, values, scalars);
  const std::span<const ExpectedResult> expected(results.data() + run.first_result, static_cast<std::size_t>(run.num_results));
  const AllocationScope scope(expected, run.packing);
  if (run.grad == GradWrite::InPlace) {
    run_op_into(graph, op, values, run.slice);
  } else {
    run_op(graph, op, values, scalars);
  }
  require_layout(graph, op, values);
}

void ProgramRunner::Prepared::run_compute(TaskId id, const Task& task) {
  std::size_t next = 0;  // effect
  const auto allocate_until = [&](std::int32_t kernel) {
    for (; next < task.effects.size() && task.effects[next].kind == EffectKind::Allocate && task.effects[next].kernel <= kernel;
         ++next)
      allocate(task.effects[next].buffer);
  };
  const auto free_until = [&](std::int32_t kernel) {
    for (; next < task.effects.size() && task.effects[next].kind == EffectKind::Free && task.effects[next].kernel <= kernel; ++next)
      free(task.effects[next].buffer);
  };
  for (const RunOp& run : ops[id.at()]) {
    if (run.kernel >= 0) allocate_until(run.kernel);
    run_one(run);
    if (run.makes_loss) {
      host_losses.select(0, task.micro_step).copy_(values[graph.loss.at()], /*non_blocking=*/true);
    }
    if (run.kernel >= 0) free_until(run.kernel);
  }
  for (; next < task.effects.size(); ++next) {  // what no kernel of ours places: behind the last one
    if (task.effects[next].kind == EffectKind::Allocate) {
      allocate(task.effects[next].buffer);
    } else {
      free(task.effects[next].buffer);
    }
  }
}

void ProgramRunner::Prepared::take_input(const Task& task) {
  CHECK(static_cast<std::size_t>(task.micro_step) < input->micro_batches.size(), "the step has a micro-batch for every micro-step");
  const MicroBatch& batch = input->micro_batches[static_cast<std::size_t>(task.micro_step)];
  const std::array<std::int64_t, 2> sizes{graph.micro_batch, graph.seq_len};
  CHECK(static_cast<std::int64_t>(batch.ids.size()) == sizes[0] * sizes[1] && batch.ids.size() == batch.targets.size(),
        "a micro-batch holds B*S ids and as many targets");
  free_all(task);  // a full gradient whose reduction was still running
  const AllocationScope scope(MemoryCategory::Inputs);
  const auto on_device = [&](std::span<const std::int64_t> numbers) {
    at::Tensor tensor = at::empty(sizes, at::TensorOptions(at::kLong).device(state.device));
    return tensor.copy_(from_host(numbers, sizes));
  };
  values[graph.ids.at()] = on_device(batch.ids);
  values[graph.targets.at()] = on_device(batch.targets);
}

// The last reduction of a micro-step keeps the own stretch: it allocates the sharded gradient, or adds to it.
void ProgramRunner::Prepared::reduce(const Task& task, const UnitBody& body, bool scatters) {
  const UnitLayout& unit = lowered.units[body.unit.at()];
  bool keeps = body.accumulate;
  for (const Effect& e : task.effects)
    keeps = keeps || (e.kind == EffectKind::Allocate && lp.roles[e.buffer.at()].use == BufferUse::ShardedGrad);
  for (std::size_t g = 0; g < unit.groups.size(); ++g) {
    const FlatGroup& layout = unit.groups[g];
    GroupState& group = state.units[body.unit.at()][g];
    if (!layout.trainable || !group.full_grad.attached) continue;
    if (scatters && mesh.shard.is_set()) machine->collectives->reduce_scatter(mesh.shard, group.full_grad.flat);
    if (!scatters)
      machine->collectives->all_reduce(mesh.replicate, own_stretch(group.full_grad, layout.stretch_numel, state.shard_index));
    if (!keeps) continue;
    if (!body.accumulate) {
      for (const Effect& e : task.effects) {
        const BufferRole& role = lp.roles[e.buffer.at()];
        if (e.kind == EffectKind::Allocate && role.use == BufferUse::ShardedGrad && role.group == static_cast<std::int32_t>(g))
          allocate(e.buffer);
      }
    }
    keep_reduced_stretch(group, layout, state, body.accumulate);
  }
  free_all(task);
}

void ProgramRunner::Prepared::optimizer_step(UnitId unit) {
  if (!counted_step) {
    state.steps_done += 1;
    state.step_counter.flat.fill_(static_cast<double>(state.steps_done));
    counted_step = true;
  }
  for (std::size_t g = 0; g < lowered.units[unit.at()].groups.size(); ++g)
    if (lowered.units[unit.at()].groups[g].trainable)
      adamw_step(state.units[unit.at()][g], state.step_counter.flat, decay[unit.at()][g], plan.workload.optimizer,
                 input->learning_rate);
}

void ProgramRunner::Prepared::run_task(TaskId id) {
  const Task& task = program.tasks[id.at()];
  const Body* body = task.body.is_set() ? &lp.bodies[task.body.at()] : nullptr;
  const auto unit_body = [&]() -> const UnitBody& { return std::get<UnitBody>(*body); };
  switch (task.kind) {
    case TaskKind::Load: {
      allocate_all(task);
      const UnitId unit = unit_body().unit;
      machine->files->load(unit, state.units[unit.at()], pieces);
      return free_all(task);
    }
    case TaskKind::Save: {
      allocate_all(task);
      const UnitId unit = unit_body().unit;
      machine->files->save(unit, state.units[unit.at()], pieces);
      return free_all(task);
    }
    case TaskKind::Input:
      return take_input(task);
    case TaskKind::Gather: {
      allocate_all(task);
      const UnitId unit = unit_body().unit;
      for (std::size_t g = 0; g < state.units[unit.at()].size(); ++g) {
        GroupState& group = state.units[unit.at()][g];
        if (!group.aliased) gather_group(group, lowered.units[unit.at()].groups[g], state, mesh, *machine->collectives);
      }
      return free_all(task);
    }
    case TaskKind::Free:
    case TaskKind::ZeroGrad:
      return free_all(task);
    case TaskKind::Forward:
    case TaskKind::Recompute:
    case TaskKind::Backward:
      return run_compute(id, task);
    case TaskKind::ReduceScatter:
      return reduce(task, unit_body(), /*scatters=*/true);
    case TaskKind::AllReduce:
      return reduce(task, unit_body(), /*scatters=*/false);
    case TaskKind::GradNorm:
      result.grad_norm = gradient_norm(state, lowered.units, mesh, *machine->collectives);
      return free_all(task);
    case TaskKind::ClipGrad:
      if (const double factor = clip_factor(plan.workload.optimizer.clip_norm, result.grad_norm); factor < 1.0)
        scale_gradients(state, lowered.units, factor);
      return;
    case TaskKind::OptimizerStep:
      allocate_all(task);
      optimizer_step(unit_body().unit);
      return free_all(task);
  }
}

ProgramRunner::ProgramRunner(const Plan& plan, const Lowered& lowered, Phase phase, RankState& state)
    : prepared_(std::make_unique<Prepared>(plan, lowered, phase, state)) {}
ProgramRunner::~ProgramRunner() = default;

StepResult ProgramRunner::run(RankMachine& machine, const StepInput& input) {
  const c10::InferenceMode no_autograd;
  Prepared& p = *prepared_;
  p.machine = &machine;
  p.input = &input;
  p.scalars.loss_seed = static_cast<double>(1.0F / static_cast<float>(input.num_targets));
  p.result = {};
  p.counted_step = false;
  p.micro_losses.assign(p.micro_losses.size(), 0.0F);
  if (p.program.phase == Phase::Load) {
    const MemoryReading reading = machine.memory->read();
    p.state.base_bytes = reading.current_bytes;
    p.state.base_by_category = reading.current;
  }
  Recorder recorder(p.program, p.state, *machine.streams, *machine.memory, input.log_memory);
  for (std::size_t t = 0; t < p.program.tasks.size(); ++t) {
    const TaskId id(static_cast<std::int64_t>(t));
    recorder.begin_task(id);
    p.run_task(id);
    recorder.end_task(id);
  }
  p.result.measured = recorder.finish(p.state.shard_index);
  p.result.workspace_peak_bytes = recorder.workspace_peak_bytes();
  for (const float loss : p.micro_losses) p.result.loss_sum += loss;
  return std::move(p.result);
}

}  // namespace shardplan
