#include "planner/lowering/program_laws.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::size_t kMostStreams = 8;

// Per stream, the last task that has ended for sure. -1: none.
using Past = std::array<std::int32_t, kMostStreams>;

struct UnitGradient {
  std::int64_t in_full = 0;          // contributions that lie in the full gradient, not yet reduced
  std::int64_t in_sharded = 0;       // contributions that lie in the sharded gradient
  std::int32_t last_write = -1;      // task
  bool is_scattered = false;         // summed over the shard axis since the last contribution
  bool is_all_reduced = false;       // and over the replicate axis
  std::int32_t last_reduction = -1;  // task
  bool is_stepped = false;
};

class Judge {
 public:
  Judge(const Plan& plan, const Lowered& lowered, const LoweredProgram& phase)
      : plan_(plan), lowered_(lowered), graph_(*lowered.graph), phase_(phase), program_(phase.program) {
    alive_.resize(program_.buffers.size());
    storage_buffer_.resize(graph_.storages.size());
    is_written_.resize(graph_.storages.size());
    written_slices_.resize(graph_.table.parameters.size());
    runs_.resize(graph_.ops.size());
    unit_buffers_.resize(lowered.units.size());
    gradients_.resize(lowered.units.size());
    gather_task_.assign(lowered.units.size(), -1);
    free_task_.assign(lowered.units.size(), -1);
    contributions_.resize(lowered.units.size());
    for (const Op& op : graph_.ops)
      if (op.kind == OpKind::AccumulateGrad) ++contributions_[place(op.parameter).unit.at()];
  }

  ProgramVerdict run() {
    try {
      validate(program_);
    } catch (const CheckFailure& failure) {
      report("the program is well formed", failure.what());
      return std::move(verdict_);
    }
    if (program_.streams.size() > kMostStreams) {
      report("a program has at most 8 streams", std::string(phase_name(program_.phase)));
      return std::move(verdict_);
    }
    for (const BufferId id : program_.resident) change(id, EffectKind::Allocate);
    verdict_.peak_bytes = level_;
    for (std::size_t t = 0; t < program_.tasks.size(); ++t) task(static_cast<std::int32_t>(t));
    at_end();
    return std::move(verdict_);
  }

 private:
  // ---- reporting ----

  void report(std::string law, std::string where) {
    if (verdict_.problems.size() < kMostProblems) verdict_.problems.push_back({.law = std::move(law), .where = std::move(where)});
  }
  void require(bool holds, const char* law, const std::string& detail = "") {
    if (holds) return;
    const Task& task = program_.tasks[static_cast<std::size_t>(now_)];
    report(law, fmt::format("{}, task {} \"{}\", micro-step {}{}{}", phase_name(program_.phase), now_, task.label, task.micro_step,
                            detail.empty() ? "" : ": ", detail));
  }

  // ---- what the plan says ----

  [[nodiscard]] const ParameterPlace& place(ParameterId p) const { return lowered_.places[p.at()]; }
  [[nodiscard]] bool is_aliased() const {
    return plan_.mesh.shard == 1 && plan_.workload.precision.stored == plan_.workload.precision.compute;
  }
  [[nodiscard]] bool trains(UnitId unit) const { return contributions_[unit.at()] > 0; }
  [[nodiscard]] bool is_training() const { return program_.phase == Phase::Step1 || program_.phase == Phase::Step2; }
  [[nodiscard]] std::int64_t right_bytes(const BufferRole& role) const {
    const Precision& p = plan_.workload.precision;
    const auto group = [&]() -> const FlatGroup& {
      return lowered_.units[role.unit.at()].groups[static_cast<std::size_t>(role.group)];
    };
    switch (role.use) {
      case BufferUse::GraphStorage:
      case BufferUse::ConstantBuffer:
        return graph_.storage(role.storage).bytes;
      case BufferUse::ShardedParam:
      case BufferUse::ShardedGrad:
        return group().stretch_numel * element_bytes(p.stored);
      case BufferUse::GatheredParam:
        return group().padded_numel * element_bytes(p.compute);
      case BufferUse::FullGrad:
        return group().padded_numel * element_bytes(p.reduce);
      case BufferUse::ExpAvg:
      case BufferUse::ExpAvgSq:
        return group().stretch_numel * element_bytes(p.state);
      case BufferUse::StepCounter:
        return 4;
      case BufferUse::Scratch:
      case BufferUse::NormScalar:
      case BufferUse::Piece:
      case BufferUse::GatherInput:
      case BufferUse::GatherOutput:
      case BufferUse::ReduceInput:
      case BufferUse::ReduceOutput:
      case BufferUse::Temporary:
        break;
    }
    return -1;  // any size
  }

  // ---- buffers ----

  void change(BufferId id, EffectKind kind) {
    const Buffer& buffer = program_.buffers[id.at()];
    const BufferRole& role = phase_.roles[id.at()];
    const bool is_born = kind == EffectKind::Allocate;
    alive_[id.at()] = is_born;
    if (buffer.place == Place::Device) level_ += is_born ? buffer.bytes : -buffer.bytes;
    verdict_.peak_bytes = std::max(verdict_.peak_bytes, level_);
    if (is_born) {
      const std::int64_t bytes = right_bytes(role);
      if (bytes >= 0 && bytes != buffer.bytes)
        report("a buffer has the size of what it holds",
               fmt::format("{}: {} is {} B, not {} B", phase_name(program_.phase), buffer.label, buffer.bytes, bytes));
    }
    if (role.use == BufferUse::GraphStorage || role.use == BufferUse::ConstantBuffer) {
      BufferId& current = storage_buffer_[role.storage.at()];
      if (is_born) require_alive_once(!current.is_set(), buffer.label);
      current = is_born ? id : BufferId{};
      is_written_[role.storage.at()] =
          is_born && (role.use == BufferUse::ConstantBuffer || graph_.storage(role.storage).role == StorageRole::Input);
    } else if (role.unit.is_set() && role.group >= 0) {
      std::int32_t& count = unit_count(role);
      count += is_born ? 1 : -1;
      require_alive_once(count <= 1, buffer.label);
      if (role.use == BufferUse::FullGrad && is_born) begin_full_gradient(role.unit);
    }
  }

  void require_alive_once(bool holds, const std::string& label) {
    if (!holds) report("what a buffer stands for is alive once", fmt::format("{}: {}", phase_name(program_.phase), label));
  }

  std::int32_t& unit_count(const BufferRole& role) {
    std::vector<std::int32_t>& counts = unit_buffers_[role.unit.at()];
    counts.resize(lowered_.units[role.unit.at()].groups.size() * kNumUses);
    return counts[static_cast<std::size_t>(role.group) * kNumUses + static_cast<std::size_t>(role.use)];
  }
  [[nodiscard]] bool has(UnitId unit, std::int32_t group, BufferUse use) {
    return unit_count({.use = use, .unit = unit, .group = group}) == 1;
  }

  void begin_full_gradient(UnitId unit) {
    gradients_[unit.at()].in_full = 0;
    for (const FlatGroup& group : lowered_.units[unit.at()].groups)
      for (const ParameterSlot& slot : group.slots) written_slices_[slot.parameter.at()] = false;
  }

  // ---- order of streams ----

  Past past_of(const Task& task) {
    Past past;
    past.fill(-1);
    const auto join = [&](std::int32_t earlier) {
      const Past& other = pasts_[static_cast<std::size_t>(earlier)];
      for (std::size_t s = 0; s < kMostStreams; ++s) past[s] = std::max(past[s], other[s]);
    };
    if (stream_last_[task.stream.at()] >= 0) join(stream_last_[task.stream.at()]);
    for (const TaskId w : task.waits_on) join(w.value);
    past[task.stream.at()] = now_;
    stream_last_[task.stream.at()] = now_;
    return past;
  }
  [[nodiscard]] bool has_ended(std::int32_t earlier) const {
    return pasts_.back()[program_.tasks[static_cast<std::size_t>(earlier)].stream.at()] >= earlier;
  }

  // ---- tasks ----

  void task(std::int32_t index) {
    now_ = index;
    const Task& task = program_.tasks[static_cast<std::size_t>(index)];
    pasts_.push_back(past_of(task));
    next_effect_ = 0;
    const Body& body = phase_.bodies[task.body.at()];
    if (const auto* compute = std::get_if<ComputeBody>(&body)) {
      for (const BodyOp& op : compute->ops) run_op(task, op);
      apply_effects(task, INT32_MAX, true);
      return;
    }
    const UnitBody* unit = std::get_if<UnitBody>(&body);
    if (task.kind == TaskKind::Free && unit != nullptr) {
      require(gather_task_[unit->unit.at()] >= 0 && has_ended(gather_task_[unit->unit.at()]),
              "a unit is dropped after its gather has ended");
      free_task_[unit->unit.at()] = index;
    }
    apply_effects(task, INT32_MAX, true);
    if (unit != nullptr)
      unit_task(task, *unit);
    else
      whole_task(task);
  }

  // Effects before a kernel starts, or up to its end.
  void apply_effects(const Task& task, std::int32_t kernel, bool to_its_end) {
    for (; next_effect_ < task.effects.size(); ++next_effect_) {
      const Effect& effect = task.effects[next_effect_];
      if (effect.kernel > kernel || (effect.kernel == kernel && !to_its_end && effect.kind == EffectKind::Free)) return;
      change(effect.buffer, effect.kind);
    }
  }

  void run_op(const Task& task, const BodyOp& placed) {
    const Op& op = graph_.op(placed.op);
    require((task.kind == TaskKind::Backward) == (op.pass == OpPass::Backward), "an op runs in a task of its pass");
    if (task.kind != TaskKind::Recompute) ++runs_[placed.op.at()];
    if (placed.kernel >= 0) apply_effects(task, placed.kernel, false);
    if (is_view(op.kind)) return;
    require(placed.kernel >= 0 || (op.kind == OpKind::AccumulateGrad && placed.grad == GradWrite::InPlace),
            "every op but views has a kernel");
    if (placed.kernel >= 0)
      for (const ValueId v : op.inputs) read(v);
    if (placed.grad == GradWrite::InPlace && op.kind != OpKind::AccumulateGrad) {
      write_gradient(placed);
      return;
    }
    if (op.kind == OpKind::AccumulateGrad) {
      if (placed.grad != GradWrite::InPlace) write_gradient(placed);
      UnitGradient& gradient = gradients_[place(op.parameter).unit.at()];
      ++gradient.in_full;
      gradient.last_write = now_;
      gradient.is_scattered = gradient.is_all_reduced = false;
      return;
    }
    for (const ValueId v : op.outputs) write(v, op);
  }

  void read(ValueId v) {
    if (!v.is_set()) return;
    const StorageId id = graph_.value(v).storage;
    const Storage& storage = graph_.storage(id);
    switch (storage.role) {
      case StorageRole::HostScalar:
        return;
      case StorageRole::Parameter: {
        const ParameterPlace& at = place(storage.parameter);
        if (is_aliased()) return;
        require(has(at.unit, at.group, BufferUse::GatheredParam), "a parameter is gathered when an op reads it",
                graph_.table.parameters[storage.parameter.at()].name);
        const std::int32_t gather = gather_task_[at.unit.at()];
        require(gather >= 0 && has_ended(gather), "an op that reads a unit waits for its gather",
                lowered_.units[at.unit.at()].name);
        return;
      }
      case StorageRole::Activation:
      case StorageRole::Gradient:
      case StorageRole::Input:
      case StorageRole::Buffer:
        break;
    }
    if (storage.bytes == 0) return;
    require(storage_buffer_[id.at()].is_set(), "a value is alive when an op reads it", value_name(storage));
    require(is_written_[id.at()], "a value is made before an op reads it", value_name(storage));
  }

  void write(ValueId v, const Op& op) {
    const StorageId id = graph_.value(v).storage;
    const Storage& storage = graph_.storage(id);
    if (storage.bytes == 0 || (storage.role != StorageRole::Activation && storage.role != StorageRole::Gradient)) return;
    require(storage_buffer_[id.at()].is_set(), "a result has its buffer when the op runs", std::string(graph_.name_of(op)));
    is_written_[id.at()] = true;
  }

  void write_gradient(const BodyOp& placed) {
    const ParameterPlace& at = place(placed.grad_target);
    const std::string& name = graph_.table.parameters[placed.grad_target.at()].name;
    require(has(at.unit, at.group, BufferUse::FullGrad), "a gradient is written into a full gradient that is alive", name);
    const bool is_first = !written_slices_[placed.grad_target.at()];
    require(is_first == (placed.grad != GradWrite::Add), "the first contribution to a slice is written, further ones are added",
            name);
    written_slices_[placed.grad_target.at()] = true;
  }

  [[nodiscard]] std::string value_name(const Storage& storage) const {
    return storage.name < 0 ? "a value" : graph_.names[static_cast<std::size_t>(storage.name)];
  }

  void unit_task(const Task& task, const UnitBody& body) {
    const UnitId unit = body.unit;
    UnitGradient& gradient = gradients_[unit.at()];
    switch (task.kind) {
      case TaskKind::Gather:
        require(free_task_[unit.at()] < 0 || has_ended(free_task_[unit.at()]), "a unit is gathered again after it was dropped");
        gather_task_[unit.at()] = now_;
        break;
      case TaskKind::ReduceScatter:
        reduce(gradient);
        require(!gradient.is_scattered, "every gradient is reduced exactly once");
        require((task.collective.has_value()) == (plan_.mesh.shard > 1),
                "gradients are summed over the shard axis when it has ranks");
        gradient.is_scattered = true;
        if (plan_.mesh.replicate == 1) finish_reduction(unit, body);
        break;
      case TaskKind::AllReduce:
        reduce(gradient);
        require(!gradient.is_all_reduced, "every gradient is reduced exactly once");
        require(plan_.mesh.shard == 1 || gradient.is_scattered,
                "gradients are summed over the shard axis before the replicate axis");
        gradient.is_all_reduced = true;
        finish_reduction(unit, body);
        break;
      case TaskKind::OptimizerStep:
        step(unit, gradient);
        break;
      case TaskKind::Load:
      case TaskKind::Input:
      case TaskKind::Free:
      case TaskKind::Forward:
      case TaskKind::Recompute:
      case TaskKind::Backward:
      case TaskKind::GradNorm:
      case TaskKind::ClipGrad:
      case TaskKind::ZeroGrad:
      case TaskKind::Save:
        break;
    }
  }

  void reduce(UnitGradient& gradient) {
    require(gradient.last_write >= 0 && has_ended(gradient.last_write),
            "a reduction waits for the backward that completed the unit");
    gradient.last_reduction = now_;
  }

  // Full gradients are the gradient when there is one shard and no cast; else the reduced stretch joins the sharded gradient.
  void finish_reduction(UnitId unit, const UnitBody& body) {
    UnitGradient& gradient = gradients_[unit.at()];
    require(gradient.in_full % contributions_[unit.at()] == 0 && gradient.in_full > 0,
            "a unit is reduced when all its contributions are there");
    if (!has(unit, 0, BufferUse::ShardedGrad)) return;
    require(body.accumulate == (gradient.in_sharded > 0), "gradients of earlier micro-steps are added to, not overwritten");
    gradient.in_sharded += gradient.in_full;
    gradient.in_full = 0;
  }

  void step(UnitId unit, UnitGradient& gradient) {
    const std::int64_t expected = contributions_[unit.at()] * plan_.grad_accum;
    const bool is_sharded = has(unit, 0, BufferUse::ShardedGrad);
    require(is_sharded || has(unit, 0, BufferUse::FullGrad), "the optimizer has a gradient");
    require((is_sharded ? gradient.in_sharded : gradient.in_full) == expected && (!is_sharded || gradient.in_full == 0),
            "the optimizer's gradient holds every contribution of the step once");
    require(plan_.mesh.shard == 1 || gradient.is_scattered, "gradients are summed over the shard axis before the step");
    require(plan_.mesh.replicate == 1 || gradient.is_all_reduced, "gradients are summed over the replicate axis before the step");
    require(gradient.last_reduction < 0 || has_ended(gradient.last_reduction), "the optimizer waits for the unit's reduction");
    require(has(unit, 0, BufferUse::ExpAvg) && has(unit, 0, BufferUse::ExpAvgSq) && has(unit, 0, BufferUse::ShardedParam),
            "the optimizer has parameters and moments");
    require(!gradient.is_stepped, "a unit is stepped once");
    gradient.is_stepped = true;
  }

  void whole_task(const Task& task) {
    if (task.kind != TaskKind::GradNorm) return;
    for (const UnitGradient& gradient : gradients_)
      require(gradient.last_reduction < 0 || has_ended(gradient.last_reduction), "the norm waits for all reductions");
  }

  // ---- at the end ----

  void at_end() {
    const std::string phase(phase_name(program_.phase));
    const std::int32_t num_micro_steps = is_training() ? plan_.grad_accum : program_.phase == Phase::Eval ? 1 : 0;
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const std::int32_t expected = graph_.ops[i].pass == OpPass::Forward || is_training() ? num_micro_steps : 0;
      if (runs_[i] == expected) continue;
      report("every op of the graph runs once in a micro-step",
             fmt::format("{}: op {} \"{}\" runs {} times, not {}", phase, i, graph_.name_of(graph_.ops[i]), runs_[i], expected));
    }
    for (std::size_t b = 0; b < alive_.size(); ++b) {
      if (alive_[b] && !may_outlive(phase_.roles[b].use))
        report("nothing but parameters, constants and states outlives a phase",
               fmt::format("{}: {}", phase, program_.buffers[b].label));
    }
    for (std::size_t u = 0; u < lowered_.units.size(); ++u) {
      const UnitId unit(static_cast<std::int64_t>(u));
      const std::vector<FlatGroup>& groups = lowered_.units[u].groups;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (!has(unit, static_cast<std::int32_t>(g), BufferUse::ShardedParam))
          report("every unit's stretch is stored at the end of a phase", fmt::format("{}: unit {}", phase, lowered_.units[u].name));
      }
      if (is_training() && trains(unit) && !gradients_[u].is_stepped)
        report("every unit that trains is stepped", fmt::format("{}: unit {}", phase, lowered_.units[u].name));
    }
  }

  static bool may_outlive(BufferUse use) {
    return use == BufferUse::ShardedParam || use == BufferUse::ConstantBuffer || use == BufferUse::ExpAvg ||
           use == BufferUse::ExpAvgSq || use == BufferUse::StepCounter;
  }

  static constexpr std::size_t kNumUses = static_cast<std::size_t>(BufferUse::Temporary) + 1;

  const Plan& plan_;
  const Lowered& lowered_;
  const OpGraph& graph_;
  const LoweredProgram& phase_;
  const StepProgram& program_;
  ProgramVerdict verdict_;
  std::int64_t level_ = 0;
  std::int32_t now_ = 0;
  std::size_t next_effect_ = 0;
  std::vector<bool> alive_;                              // by BufferId
  std::vector<BufferId> storage_buffer_;                 // by StorageId: its buffer while alive
  std::vector<bool> is_written_;                         // by StorageId
  std::vector<bool> written_slices_;                     // by ParameterId
  std::vector<std::int32_t> runs_;                       // by OpId, recomputation apart
  std::vector<std::vector<std::int32_t>> unit_buffers_;  // by UnitId, then group and use: how many are alive
  std::vector<UnitGradient> gradients_;
  std::vector<std::int64_t> contributions_;  // by UnitId, of one micro-step
  std::vector<std::int32_t> gather_task_, free_task_;
  std::vector<Past> pasts_;
  std::array<std::int32_t, kMostStreams> stream_last_ = [] {
    std::array<std::int32_t, kMostStreams> none;
    none.fill(-1);
    return none;
  }();
};

}  // namespace

ProgramVerdict judge_program(const Plan& plan, const Lowered& lowered, const LoweredProgram& phase) {
  return Judge(plan, lowered, phase).run();
}

}  // namespace shardplan
