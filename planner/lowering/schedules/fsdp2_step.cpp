#include "planner/lowering/schedules/fsdp2_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/graph/ops.h"

namespace shardplan {
namespace {

constexpr std::int64_t kScalarBytes = 4;    // loss and its parts, fp32
constexpr std::int64_t kPositionBytes = 8;  // int64

}  // namespace

Fsdp2Step::Fsdp2Step(const OpGraph& graph, const Segments& segments, const Fsdp2Switches& switches, Phase phase)
    : graph_(graph),
      segments_(segments),
      switches_(switches),
      phase_(phase),
      forward_(stock_forward(graph)),
      backward_(stock_backward(graph, forward_)),
      units_(fsdp2_units(graph, forward_, switches)),
      bodies_(graph, segments, {}),
      builder_(phase, {.graph = graph, .segments = segments, .units = no_layouts_}, bodies_, switches.mesh, Labels::All),
      machine_(graph, units_, switches_, builder_) {
  if (is_chunked() && switches.wrap == Fsdp2Wrap::EmbedBlocksHead)
    throw ConfigError("a head that is a unit of its own is resharded before the pieces of a chunked loss run again", "loss",
                      "leave the head in the root unit");
  for (std::vector<BufferId>& alive : alive_) alive.resize(graph.storages.size());
  find_checkpoints();
  find_deaths();
  uses_of_.assign(graph.table.parameters.size(), 0);
  for (const BackwardStep& step : backward_.steps)
    for (const ParameterId p : step.hands_over) ++uses_of_[p.at()];
}

// ---- what autograd keeps ----

std::int32_t Fsdp2Step::layer_at(std::int32_t position) const {
  return graph_.op(forward_.order[static_cast<std::size_t>(position)]).layer;
}

bool Fsdp2Step::is_made_in(StorageId storage, std::int32_t layer) const {
  const OpId maker = graph_.storage(storage).made_by;
  return maker.is_set() && forward_.layers[static_cast<std::size_t>(layer)].contains(forward_.position[maker.at()]);
}

// A recompute stops when as many tensors are saved as forward saved: at the last op that saves one, before its kernel if it is an
// operand.
void Fsdp2Step::find_checkpoints() {
  layers_.resize(forward_.layers.size());
  for (const BackwardStep& step : backward_.steps) {
    const std::int32_t index = layer_at(step.position);
    if (index < 0 || step.saved.empty()) continue;
    Layer& layer = layers_[static_cast<std::size_t>(index)];
    layer.is_checkpointed =
        static_cast<std::size_t>(index) < switches_.checkpointed.size() && switches_.checkpointed[static_cast<std::size_t>(index)];
    layer.frame_end = layer.frame_end == kNever ? step.position : std::min(layer.frame_end, step.position);
    if (step.position < layer.stop) continue;
    bool saves_result = false;
    for (const StorageId storage : step.saved) saves_result = saves_result || graph_.storage(storage).made_by == step.forward;
    layer.stop = std::max(layer.stop, step.position + (saves_result ? 1 : 0));
  }
}

void Fsdp2Step::saved_until(StorageId storage, Instance instance, std::int32_t position) {
  std::int32_t& last = last_saver_[instance][storage.at()];
  last = last == kNever ? position : std::min(last, position);
}

void Fsdp2Step::find_deaths() {
  for (std::vector<std::int32_t>& last : last_saver_) last.assign(graph_.storages.size(), kNever);
  for (const BackwardStep& step : backward_.steps) {
    const std::int32_t layer = layer_at(step.position);
    const bool is_checkpointed = layer >= 0 && layers_[static_cast<std::size_t>(layer)].is_checkpointed;
    for (const StorageId storage : step.saved) {
      if (is_checkpointed && is_made_in(storage, layer))
        saved_until(storage, Again, step.position);
      else if (!is_checkpointed)
        saved_until(storage, Made, step.position);
    }
  }
  // The arguments of a checkpointed layer stay until nothing of it is saved any more.
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].is_checkpointed) continue;
    for (std::int32_t p = forward_.layers[i].first; p < forward_.layers[i].end; ++p)
      for (const ValueId v : graph_.op(forward_.order[static_cast<std::size_t>(p)]).inputs)
        if (v.is_set() && !is_made_in(graph_.value(v).storage, static_cast<std::int32_t>(i)))
          saved_until(graph_.value(v).storage, Made, layers_[i].frame_end);
  }
  // Pieces of a chunked loss are checkpointed: their hidden states stay.
  if (is_chunked())
    saved_until(graph_.value(graph_.op(forward_.order[static_cast<std::size_t>(forward_.head.first)]).inputs[0]).storage, Made,
                forward_.head.first);
  held_until_.resize(forward_.order.size());
  for (std::vector<std::vector<StorageId>>& list : let_go_) list.resize(forward_.order.size());
  for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
    const StorageId storage(static_cast<std::int64_t>(s));
    for (const Instance instance : {Made, Again})
      if (last_saver_[instance][s] != kNever)
        let_go_[instance][static_cast<std::size_t>(last_saver_[instance][s])].push_back(storage);
    if (forward_.holds[s].until >= 0) held_until_[static_cast<std::size_t>(forward_.holds[s].until)].push_back(storage);
  }
}

// A unit's reduction is hooked to its inputs: one of them must lead to something that trains.
bool Fsdp2Step::input_needs_gradient(const Fsdp2Unit& unit) const {
  for (std::int32_t p = 0; p < unit.forward.first; ++p)
    for (const ValueId v : graph_.op(forward_.order[static_cast<std::size_t>(p)]).inputs) {
      if (!v.is_set() || graph_.storage_of(v).role != StorageRole::Parameter) continue;
      if (graph_.table.parameters[graph_.storage_of(v).parameter.at()].trainable) return true;
    }
  return false;
}

// ---- tasks and buffers ----

void Fsdp2Step::enter(TaskKind kind, SegmentId segment) {
  if (in_task_ && task_kind_ == kind && task_segment_ == segment) return;
  leave();
  const std::string_view verb = kind == TaskKind::Forward     ? "forward of"
                                : kind == TaskKind::Recompute ? "recompute of"
                                                              : "backward of";
  (void)builder_.begin({.kind = kind, .micro_step = micro_step_, .first = segment, .last = segment},
                       fmt::format("{} {}", verb, segments_.all[segment.at()].name));
  in_task_ = true;
  task_kind_ = kind;
  task_segment_ = segment;
}

void Fsdp2Step::leave() {
  if (in_task_) builder_.end();
  in_task_ = false;
}

BufferId Fsdp2Step::temporary(std::int64_t bytes, std::string label, MemoryCategory category) {
  return builder_.allocate({.bytes = bytes, .category = category, .pool = kComputeStream, .label = std::move(label)},
                           {.use = BufferUse::Temporary});
}

void Fsdp2Step::make(StorageId storage, Instance instance) {
  const Storage& made = graph_.storage(storage);
  if (made.bytes == 0 || alive_[instance][storage.at()].is_set()) return;
  const std::string_view name =
      made.name < 0 ? std::string_view("value") : std::string_view(graph_.names[static_cast<std::size_t>(made.name)]);
  const Op& op = graph_.op(made.made_by);
  alive_[instance][storage.at()] =
      builder_.allocate({.bytes = made.bytes,
                         .category = made.role == StorageRole::Gradient ? MemoryCategory::Temp : MemoryCategory::Activation,
                         .pool = kComputeStream,
                         .label = fmt::format("{} {} {}{}", segments_.all[op.segment.at()].name, name, op_kind_name(op.kind),
                                              instance == Again ? " again" : "")},
                        {.use = BufferUse::GraphStorage, .storage = storage});
}

void Fsdp2Step::drop(StorageId storage, Instance instance) {
  BufferId& buffer = alive_[instance][storage.at()];
  if (!buffer.is_set()) return;
  builder_.release(buffer);
  buffer = {};
}

void Fsdp2Step::run_op(OpId id, Instance instance) {
  const Op& op = graph_.op(id);
  if (is_view(op.kind)) return;
  for (const ValueId v : op.outputs)
    if (graph_.storage_of(v).made_by == id) make(graph_.value(v).storage, instance);
  const OpCost cost = op_cost(graph_, id);
  BufferId scratch;
  if (cost.scratch_bytes > 0)
    scratch = builder_.allocate({.bytes = cost.scratch_bytes,
                                 .category = MemoryCategory::Workspace,
                                 .pool = kComputeStream,
                                 .label = fmt::format("inside {}", op_kind_name(op.kind))},
                                {.use = BufferUse::Scratch});
  builder_.kernel(cost.work);
  if (scratch.is_set()) builder_.release(scratch);
}

// ---- a step ----

void Fsdp2Step::place_residents() {
  machine_.place_parameters();
  // Stock rotary modules keep their frequencies twice.
  for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
    if (graph_.storages[s].role != StorageRole::Buffer) continue;
    for (int copy = 0; copy < 2; ++copy)
      (void)builder_.resident(
          {.bytes = graph_.storages[s].bytes, .category = MemoryCategory::Buffer, .pool = kComputeStream, .label = "constants"},
          {.use = BufferUse::ConstantBuffer, .storage = StorageId(static_cast<std::int64_t>(s))});
  }
  // Ids and labels are one tensor; a padding mask has its shape.
  const std::int64_t ids = graph_.storage_of(graph_.ids).bytes;
  (void)builder_.resident({.bytes = ids, .category = MemoryCategory::Inputs, .pool = kComputeStream, .label = "ids"},
                          {.use = BufferUse::GraphStorage, .storage = graph_.value(graph_.ids).storage});
  if (graph_.kernels.padding_mask)
    (void)builder_.resident({.bytes = ids, .category = MemoryCategory::Inputs, .pool = kComputeStream, .label = "attention mask"},
                            {.use = BufferUse::Temporary});
  if (phase_ != Phase::Step2) return;
  for (const ParameterId p : trained())
    for (const BufferUse use : optimizer_states(switches_.optimizer))
      (void)builder_.resident(state_buffer(p, use), {.use = use, .parameter = p});
  // The caller still holds the loss of the step before, and its outputs.
  loss_ =
      builder_.resident({.bytes = kScalarBytes, .category = MemoryCategory::Activation, .pool = kComputeStream, .label = "loss"},
                        {.use = BufferUse::Temporary});
  if (!switches_.keeps_outputs || is_chunked()) return;
  kept_logits_ = builder_.resident({.bytes = graph_.storage_of(graph_.logits).bytes,
                                    .category = MemoryCategory::Activation,
                                    .pool = kComputeStream,
                                    .label = "logits of the outputs"},
                                   {.use = BufferUse::Temporary});
  if (switches_.micro_steps > 1)
    kept_loss_ = builder_.resident(
        {.bytes = kScalarBytes, .category = MemoryCategory::Activation, .pool = kComputeStream, .label = "loss of the outputs"},
        {.use = BufferUse::Temporary});
}

Fsdp2Program Fsdp2Step::run() {
  place_residents();
  for (std::int32_t m = 0; m < switches_.micro_steps; ++m) {
    micro_step_ = m;
    machine_.begin_micro_step(m, switches_.reduces_every_micro_step || m + 1 == switches_.micro_steps);
    forward();
    result_.after_forward.push_back(last_task());
    backward();
    result_.after_backward.push_back(last_task());
  }
  optimizer();
  zero_gradients();
  result_.lowered = builder_.finish();
  return std::move(result_);
}

void Fsdp2Step::release_held(std::int32_t position, bool after_module) {
  for (const StorageId storage : held_until_[static_cast<std::size_t>(position)]) {
    const bool is_kept = last_saver_[Made][storage.at()] != kNever || storage == graph_.value(graph_.loss).storage ||
                         storage == graph_.value(graph_.logits).storage;
    if (!is_kept && forward_.holds[storage.at()].after_module == after_module) drop(storage, Made);
  }
}

void Fsdp2Step::forward() {
  const auto num_positions = static_cast<std::int32_t>(forward_.order.size());
  for (std::int32_t p = 0; p < num_positions; ++p) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].forward.first != p) continue;
      leave();
      machine_.pre_forward(u);
    }
    if (is_chunked() && p == forward_.head.first) {
      chunked_forward();
      return_from_root();
      break;
    }
    const OpId id = forward_.order[static_cast<std::size_t>(p)];
    enter(TaskKind::Forward, graph_.op(id).segment);
    if (p == forward_.embedding.end) positions_ = temporary(kPositionBytes * graph_.seq_len, "position ids");
    run_op(id, Made);
    release_held(p, false);
    // Inner units end before outer ones; the root ends with the whole forward.
    for (std::size_t u = units_.size(); u-- > 1;) {
      if (units_[u].forward.end != p + 1) continue;
      leave();
      machine_.post_forward(u);
    }
    if (p + 1 == num_positions) return_from_root();
    enter(TaskKind::Forward, graph_.op(id).segment);
    release_held(p, true);
    const bool body_returns = p + 1 == forward_.head.first;
    const bool stays = std::any_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.is_checkpointed; });
    if (body_returns && !stays) {
      builder_.release(positions_);
      positions_ = {};
    }
  }
  drop_output();
  leave();
}

void Fsdp2Step::return_from_root() {
  leave();
  machine_.post_forward(0);
  machine_.end_forward();
  enter(TaskKind::Forward, graph_.op(forward_.order.back()).segment);
}

// What the caller assigns and drops when forward has returned.
void Fsdp2Step::drop_output() {
  const StorageId loss = graph_.value(graph_.loss).storage, logits = graph_.value(graph_.logits).storage;
  if (kept_logits_.is_set()) builder_.release(std::exchange(kept_logits_, {}));
  if (kept_loss_.is_set()) builder_.release(std::exchange(kept_loss_, {}));
  // `loss` still names the scalar of the micro-step before, until the new one is assigned.
  if (loss_.is_set()) builder_.release(std::exchange(loss_, {}));
  if (last_saver_[Made][logits.at()] == kNever) {
    if (switches_.keeps_outputs && !is_chunked())
      kept_logits_ = std::exchange(alive_[Made][logits.at()], {});
    else
      drop(logits, Made);
  }
  if (switches_.micro_steps == 1) {
    loss_ = std::exchange(alive_[Made][loss.at()], {});
    return;
  }
  loss_ = temporary(kScalarBytes, "loss divided by the micro-steps");
  builder_.kernel({.compute = ComputeClass::Elementwise,
                   .dtype = DType::F32,
                   .flops = 1,
                   .read_bytes = kScalarBytes,
                   .written_bytes = kScalarBytes});
  if (switches_.keeps_outputs && !is_chunked())
    kept_loss_ = std::exchange(alive_[Made][loss.at()], {});
  else
    drop(loss, Made);
}

void Fsdp2Step::recompute(std::int32_t index) {
  const PositionRange range = forward_.layers[static_cast<std::size_t>(index)];
  const std::int32_t stop = layers_[static_cast<std::size_t>(index)].stop;
  for (std::int32_t p = range.first; p < std::min(stop, range.end); ++p) {
    const OpId id = forward_.order[static_cast<std::size_t>(p)];
    enter(TaskKind::Recompute, graph_.op(id).segment);
    run_op(id, Again);
    for (const StorageId storage : held_until_[static_cast<std::size_t>(p)])
      if (last_saver_[Again][storage.at()] == kNever) drop(storage, Again);
  }
  // The frames of the interrupted call.
  for (std::int32_t p = range.first; p < std::min(stop, range.end); ++p)
    for (const ValueId v : graph_.op(forward_.order[static_cast<std::size_t>(p)]).outputs)
      if (last_saver_[Again][graph_.value(v).storage.at()] == kNever) drop(graph_.value(v).storage, Again);
}

void Fsdp2Step::step(const BackwardStep& step) {
  const Op& forward = graph_.op(step.forward);
  enter(TaskKind::Backward, forward.segment);
  // The derivative of a square raises its operand to the first power, which is a copy.
  BufferId first_power;
  if (forward.kind == OpKind::PowScalar && forward.scalar == 2.0 && graph_.op(step.ops.front()).kind != OpKind::Add) {
    first_power = temporary(graph_.storage_of(forward.outputs[0]).bytes, "first power", MemoryCategory::Temp);
    builder_.kernel(op_cost(graph_, step.forward).work);
  }
  const bool is_sum = graph_.op(step.ops.front()).kind == OpKind::Add;
  if (is_sum) add_in_place_if_possible(step);
  for (const OpId id : step.ops) {
    run_op(id, Made);
    // A sum over broadcast dimensions takes the place of its operand.
    const Op& op = graph_.op(id);
    if (op.kind != OpKind::SumLast && op.kind != OpKind::SumLeading) continue;
    const StorageId operand = graph_.value(op.inputs[0]).storage;
    const bool is_own =
        std::any_of(step.ops.begin(), step.ops.end(), [&](OpId other) { return graph_.storage(operand).made_by == other; });
    if (is_own && std::find(step.dies.begin(), step.dies.end(), operand) != step.dies.end()) drop(operand, Made);
  }
  for (const StorageId storage : step.dies) drop(storage, Made);
  if (first_power.is_set()) builder_.release(first_power);
  if (!is_sum) {
    for (const Instance instance : {Made, Again})
      for (const StorageId storage : let_go_[instance][static_cast<std::size_t>(step.position)]) drop(storage, instance);
    for (const Layer& layer : layers_) {
      // Position ids are an argument of every checkpointed layer; the first layer's goes last.
      if (!layer.is_checkpointed) continue;
      if (layer.frame_end == step.position && positions_.is_set()) builder_.release(std::exchange(positions_, {}));
      break;
    }
  }
  for (std::size_t i = 0; i < step.hands_over.size(); ++i) sum_of_uses(step.hands_over[i], step.gradients[i]);
}

// The first addend becomes the result where it ends here.
void Fsdp2Step::add_in_place_if_possible(const BackwardStep& step) {
  const Op& op = graph_.op(step.ops.front());
  const StorageId first = graph_.value(op.inputs[0]).storage, sum = graph_.value(op.outputs[0]).storage;
  if (!switches_.adds_in_place || graph_.storage(first).bytes != graph_.storage(sum).bytes) return;
  if (std::find(step.dies.begin(), step.dies.end(), first) == step.dies.end()) return;
  alive_[Made][sum.at()] = std::exchange(alive_[Made][first.at()], {});
}

// A parameter that is used twice gets its gradient when the last use has run: the first waits, each further one is added.
void Fsdp2Step::sum_of_uses(ParameterId parameter, StorageId storage) {
  const bool is_last = ++uses_seen_[parameter.at()] == uses_of_[parameter.at()];
  BufferId gradient = std::exchange(alive_[Made][storage.at()], {});
  BufferId& waiting = waiting_use_[parameter.at()];
  if (waiting.is_set() && switches_.adds_in_place) {
    builder_.kernel({.compute = ComputeClass::Elementwise});
    builder_.release(std::exchange(gradient, std::exchange(waiting, {})));
  } else if (waiting.is_set()) {
    const BufferId sum =
        builder_.allocate(builder_.program().buffers[gradient.at()], {.use = BufferUse::FullGrad, .parameter = parameter});
    builder_.kernel({.compute = ComputeClass::Elementwise});
    builder_.release(waiting);
    builder_.release(gradient);
    waiting = {};
    gradient = sum;
  }
  if (is_last)
    machine_.hand_over(parameter, gradient);
  else
    waiting = gradient;
}

void Fsdp2Step::backward() {
  uses_seen_.assign(graph_.table.parameters.size(), 0);
  waiting_use_.assign(graph_.table.parameters.size(), {});
  unit_stage_.assign(units_.size(), 0);
  std::vector<bool> again(layers_.size(), false);
  enter(TaskKind::Backward, graph_.op(forward_.order.back()).segment);
  const BufferId seed = temporary(kScalarBytes, "gradient of the loss", MemoryCategory::Temp);
  leave();
  machine_.pre_backward(0);
  BufferId divided;
  if (switches_.micro_steps > 1) {
    enter(TaskKind::Backward, graph_.op(forward_.order.back()).segment);
    divided = temporary(kScalarBytes, "gradient of the loss, divided", MemoryCategory::Temp);
  }
  if (is_chunked()) {
    chunked_backward();
    if (divided.is_set()) builder_.release(std::exchange(divided, {}));
  }
  for (std::size_t s = 0; s < backward_.steps.size(); ++s) {
    const BackwardStep& next = backward_.steps[s];
    if (is_chunked() && next.position >= forward_.head.first) continue;
    for (std::size_t u = 1; u < units_.size(); ++u) {
      if (unit_stage_[u] != 0 || !units_[u].forward.contains(next.position)) continue;
      leave();
      machine_.pre_backward(u);
      unit_stage_[u] = 1;
    }
    const std::int32_t layer = layer_at(next.position);
    if (layer >= 0 && layers_[static_cast<std::size_t>(layer)].is_checkpointed && !again[static_cast<std::size_t>(layer)] &&
        !next.saved.empty()) {
      recompute(layer);
      again[static_cast<std::size_t>(layer)] = true;
    }
    step(next);
    if (divided.is_set()) builder_.release(std::exchange(divided, {}));
    const std::int32_t after = s + 1 < backward_.steps.size() ? backward_.steps[s + 1].position : kNever;
    for (std::size_t u = 1; u < units_.size(); ++u) {
      if (unit_stage_[u] != 1 || units_[u].forward.contains(after) || !input_needs_gradient(units_[u])) continue;
      leave();
      machine_.post_backward(u);
      unit_stage_[u] = 2;
    }
  }
  leave();
  machine_.end_backward();
  enter(TaskKind::Backward, graph_.op(forward_.order.back()).segment);
  builder_.release(seed);
  leave();
}

}  // namespace shardplan
