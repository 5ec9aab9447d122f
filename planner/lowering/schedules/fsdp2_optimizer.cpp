#include <fmt/format.h>

#include "core/error.h"
#include "planner/lowering/schedules/fsdp2_step.h"

namespace shardplan {
namespace {

constexpr std::int64_t kStepBytes = 4;  // fp32 counter of the fused form, on the device

std::string_view state_name(BufferUse use) {
  if (use == BufferUse::StepCounter) return "step";
  return use == BufferUse::ExpAvg ? "first moment" : "second moment";
}

}  // namespace

std::vector<BufferUse> optimizer_states(StockOptimizer optimizer) {
  switch (optimizer) {
    case StockOptimizer::FusedAdamW:
      return {BufferUse::StepCounter, BufferUse::ExpAvg, BufferUse::ExpAvgSq};
    case StockOptimizer::ForeachAdamW:
    case StockOptimizer::LoopAdamW:
      return {BufferUse::ExpAvg, BufferUse::ExpAvgSq};  // the counter is on the host
    case StockOptimizer::ForeachSgd:
      return {};
    case StockOptimizer::ForeachSgdMomentum:
      return {BufferUse::ExpAvg};
  }
  CHECK(false, "an optimizer is one of its closed list");
}

std::vector<ParameterId> Fsdp2Step::trained() const {
  std::vector<ParameterId> result;
  for (std::size_t p = 0; p < graph_.table.parameters.size(); ++p)
    if (graph_.table.parameters[p].trainable) result.emplace_back(static_cast<std::int64_t>(p));
  return result;
}

Buffer Fsdp2Step::state_buffer(ParameterId parameter, BufferUse use) const {
  const std::int64_t bytes =
      use == BufferUse::StepCounter ? kStepBytes : machine_.valid_numel(parameter) * element_bytes(machine_.stored(parameter));
  return {.bytes = bytes,
          .category = MemoryCategory::OptState,
          .pool = kComputeStream,
          .label = fmt::format("{} {}", graph_.table.parameters[parameter.at()].name, state_name(use))};
}

void Fsdp2Step::optimizer() {
  (void)builder_.begin({.kind = TaskKind::OptimizerStep, .micro_step = micro_step_}, "optimizer step");
  if (machine_.last_reduction().is_set()) builder_.wait(machine_.last_reduction());
  const std::vector<ParameterId> parameters = trained();
  if (phase_ == Phase::Step1)
    for (const ParameterId p : parameters)
      for (const BufferUse use : optimizer_states(switches_.optimizer))
        (void)builder_.allocate(state_buffer(p, use), {.use = use, .parameter = p});
  if (switches_.optimizer == StockOptimizer::LoopAdamW) divide_one_by_one(parameters);
  // The multi-tensor form takes the root of all second moments at once.
  std::vector<BufferId> roots;
  if (switches_.optimizer == StockOptimizer::ForeachAdamW)
    for (const ParameterId p : parameters) roots.push_back(root_of_second_moment(p));
  std::int64_t numel = 0;
  for (const ParameterId p : parameters) numel += machine_.valid_numel(p);
  const std::int64_t bytes = numel * element_bytes(switches_.stored),
                     states = static_cast<std::int64_t>(optimizer_states(switches_.optimizer).size());
  builder_.kernel({.compute = ComputeClass::Elementwise,
                   .dtype = switches_.stored,
                   .flops = 12 * numel,
                   .read_bytes = (2 + states) * bytes,
                   .written_bytes = (1 + states) * bytes});
  for (const BufferId root : roots) builder_.release(root);
  builder_.end();
  result_.after_optimizer = last_task();
}

BufferId Fsdp2Step::root_of_second_moment(ParameterId parameter) {
  Buffer root = state_buffer(parameter, BufferUse::ExpAvgSq);
  root.category = MemoryCategory::Temp;
  root.label = fmt::format("root of {}", root.label);
  return builder_.allocate(std::move(root), {.use = BufferUse::Temporary, .parameter = parameter});
}

// The loop form makes a root and its quotient for one parameter; the quotient lives until the next one takes its name.
void Fsdp2Step::divide_one_by_one(const std::vector<ParameterId>& parameters) {
  BufferId before;
  for (const ParameterId p : parameters) {
    const BufferId root = root_of_second_moment(p), quotient = root_of_second_moment(p);
    const std::int64_t bytes = machine_.valid_numel(p) * element_bytes(machine_.stored(p));
    builder_.kernel(
        {.compute = ComputeClass::Elementwise, .dtype = machine_.stored(p), .read_bytes = bytes, .written_bytes = bytes});
    builder_.release(root);
    if (before.is_set()) builder_.release(before);
    before = quotient;
  }
  if (before.is_set()) builder_.release(before);
}

void Fsdp2Step::zero_gradients() {
  (void)builder_.begin({.kind = TaskKind::ZeroGrad, .micro_step = micro_step_}, "zeroing of gradients");
  machine_.zero_gradients();
  builder_.end();
  result_.after_zero_grad = last_task();
}

Fsdp2Program lower_fsdp2_step(const OpGraph& graph, const Segments& segments, const Fsdp2Switches& switches, Phase phase) {
  return Fsdp2Step(graph, segments, switches, phase).run();
}

}  // namespace shardplan
