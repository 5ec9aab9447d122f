#include "planner/lowering/program_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace shardplan {
namespace {

std::string_view use_name(BufferUse use) {
  switch (use) {
    case BufferUse::GraphStorage:
      return "storage";
    case BufferUse::ShardedParam:
      return "sharded parameters";
    case BufferUse::GatheredParam:
      return "gathered parameters";
    case BufferUse::FullGrad:
      return "full gradient";
    case BufferUse::ShardedGrad:
      return "sharded gradient";
    case BufferUse::ExpAvg:
      return "first moment";
    case BufferUse::ExpAvgSq:
      return "second moment";
    case BufferUse::StepCounter:
      return "step counter";
    case BufferUse::ConstantBuffer:
      return "constants";
    case BufferUse::Scratch:
      return "scratch";
    case BufferUse::NormScalar:
      return "norm";
    case BufferUse::Piece:
      return "piece";
    case BufferUse::GatherInput:
      return "gather input";
    case BufferUse::GatherOutput:
      return "gather output";
    case BufferUse::ReduceInput:
      return "reduce input";
    case BufferUse::ReduceOutput:
      return "reduce output";
    case BufferUse::Temporary:
      return "temporary";
  }
  CHECK(false, "every use of a buffer has a name");
}

bool is_same(const BufferKey& a, const BufferKey& b) {
  return a.use == b.use && a.unit == b.unit && a.group == b.group && a.storage == b.storage && a.instance == b.instance;
}

bool is_compute(TaskKind kind) { return kind == TaskKind::Forward || kind == TaskKind::Recompute || kind == TaskKind::Backward; }

Body body_for(const TaskHead& head) {
  if (is_compute(head.kind)) return ComputeBody{};
  if (head.unit.is_set()) return UnitBody{.unit = head.unit, .accumulate = head.accumulate};
  return WholeBody{};
}

std::string_view verb(TaskKind kind) {
  switch (kind) {
    case TaskKind::Load:
      return "load of";
    case TaskKind::Input:
      return "input";
    case TaskKind::Gather:
      return "gather of";
    case TaskKind::Free:
      return "free of";
    case TaskKind::Forward:
      return "forward of";
    case TaskKind::Recompute:
      return "recompute of";
    case TaskKind::Backward:
      return "backward of";
    case TaskKind::ReduceScatter:
      return "reduce-scatter of";
    case TaskKind::AllReduce:
      return "all-reduce of";
    case TaskKind::GradNorm:
      return "gradient norm";
    case TaskKind::ClipGrad:
      return "gradient clipping";
    case TaskKind::OptimizerStep:
      return "optimizer step of";
    case TaskKind::ZeroGrad:
      return "zeroing of gradients";
    case TaskKind::Save:
      return "save of";
  }
  CHECK(false, "every task kind has a verb");
}

}  // namespace

ProgramBuilder::ProgramBuilder(Phase phase, const ProgramNames& names, const SegmentBodies& bodies, const MeshDegrees& mesh,
                               Labels labels)
    : names_(names), bodies_(bodies), labels_(labels), storages_(names.graph.storages.size() * 2) {
  StepProgram& program = result_.program;
  program.phase = phase;
  program.role = "every rank";
  program.mesh = {{.name = "shard", .degree = mesh.shard, .stride = 1},
                  {.name = "replicate", .degree = mesh.replicate, .stride = mesh.shard}};
  program.streams = {StreamKind::Compute, StreamKind::Gather, StreamKind::Reduce, StreamKind::Copy};
}

BufferId& ProgramBuilder::place_of(const BufferKey& key) {
  if (key.use == BufferUse::GraphStorage) return storages_[key.storage.at() * 2 + static_cast<std::size_t>(key.instance)];
  for (Alive& alive : others_)
    if (is_same(alive.key, key)) return alive.buffer;
  others_.push_back({.key = key});
  return others_.back().buffer;
}

BufferId ProgramBuilder::create(const BufferKey& key, std::int64_t bytes, MemoryCategory category) {
  StepProgram& program = result_.program;
  const BufferId id(static_cast<std::int64_t>(program.buffers.size()));
  Buffer buffer{.bytes = bytes, .category = category, .pool = program.tasks.empty() ? kComputeStream : program.tasks.back().stream};
  if (labels_ == Labels::All) buffer.label = buffer_label(key);
  program.buffers.push_back(std::move(buffer));
  result_.roles.push_back({.use = key.use, .unit = key.unit, .group = key.group, .storage = key.storage});
  place_of(key) = id;
  return id;
}

void ProgramBuilder::allocate_at(std::int32_t kernel, const BufferKey& key, std::int64_t bytes, MemoryCategory category) {
  CHECK(!place_of(key).is_set(), "a buffer is not alive when it is allocated: " + buffer_label(key));
  const BufferId id = create(key, bytes, category);
  result_.program.tasks.back().effects.push_back({.kind = EffectKind::Allocate, .buffer = id, .kernel = kernel});
}

void ProgramBuilder::release_at(std::int32_t kernel, const BufferKey& key) {
  BufferId& place = place_of(key);
  CHECK(place.is_set(), "a buffer is alive when it is freed: " + buffer_label(key));
  result_.program.tasks.back().effects.push_back({.kind = EffectKind::Free, .buffer = place, .kernel = kernel});
  place = {};
  if (key.use != BufferUse::GraphStorage) std::erase_if(others_, [](const Alive& alive) { return !alive.buffer.is_set(); });
}

void ProgramBuilder::resident(const BufferKey& key, std::int64_t bytes, MemoryCategory category) {
  result_.program.resident.push_back(create(key, bytes, category));
}

TaskId ProgramBuilder::begin(const TaskHead& head) {
  return begin(head, labels_ != Labels::None ? task_label(head) : std::string{});
}

TaskId ProgramBuilder::begin(const TaskHead& head, std::string label) {
  StepProgram& program = result_.program;
  const TaskId id(static_cast<std::int64_t>(program.tasks.size()));
  Task task{.kind = head.kind, .stream = head.stream, .micro_step = head.micro_step};
  task.body = BodyId(static_cast<std::int64_t>(result_.bodies.size()));
  task.label = std::move(label);
  program.tasks.push_back(std::move(task));
  result_.bodies.push_back(body_for(head));
  return id;
}

void ProgramBuilder::wait(TaskId earlier) { result_.program.tasks.back().waits_on.push_back(earlier); }

void ProgramBuilder::allocate(const BufferKey& key, std::int64_t bytes, MemoryCategory category) {
  allocate_at(static_cast<std::int32_t>(result_.program.tasks.back().kernels.size()), key, bytes, category);
}

void ProgramBuilder::release(const BufferKey& key, std::int64_t) { release_at(kernel_of_release(), key); }

std::int32_t ProgramBuilder::kernel_of_release() const {
  const auto num_kernels = static_cast<std::int32_t>(result_.program.tasks.back().kernels.size());
  const std::vector<Effect>& effects = result_.program.tasks.back().effects;
  // Effects of a task without kernels, and births after its last one, keep their order.
  return std::max({num_kernels - 1, 0, effects.empty() ? 0 : effects.back().kernel});
}

BufferId ProgramBuilder::resident(Buffer buffer, const BufferRole& role) {
  const BufferId id(static_cast<std::int64_t>(result_.program.buffers.size()));
  result_.program.buffers.push_back(std::move(buffer));
  result_.roles.push_back(role);
  result_.program.resident.push_back(id);
  return id;
}

BufferId ProgramBuilder::allocate(Buffer buffer, const BufferRole& role) {
  const BufferId id(static_cast<std::int64_t>(result_.program.buffers.size()));
  Task& task = result_.program.tasks.back();
  result_.program.buffers.push_back(std::move(buffer));
  result_.roles.push_back(role);
  task.effects.push_back({.kind = EffectKind::Allocate, .buffer = id, .kernel = static_cast<std::int32_t>(task.kernels.size())});
  return id;
}

void ProgramBuilder::release(BufferId buffer) {
  result_.program.tasks.back().effects.push_back({.kind = EffectKind::Free, .buffer = buffer, .kernel = kernel_of_release()});
}

void ProgramBuilder::kernel(const KernelWork& work) { result_.program.tasks.back().kernels.push_back(work); }

void ProgramBuilder::collective(const CollectiveWork& work) { result_.program.tasks.back().collective = work; }

MemoryCategory ProgramBuilder::storage_category(StorageId storage) const {
  switch (names_.graph.storage(storage).role) {
    case StorageRole::Input:
      return MemoryCategory::Inputs;
    case StorageRole::Gradient:
      return MemoryCategory::Temp;
    case StorageRole::Activation:
    case StorageRole::Parameter:
    case StorageRole::Buffer:
    case StorageRole::HostScalar:
      break;
  }
  return MemoryCategory::Activation;
}

void ProgramBuilder::decided(const BodyEvent& event, const OutsideDecision& decision, std::int32_t kernel) {
  if (!decision.happens) return;
  if (event.what == Happening::GradientWrite) {
    allocate_at(kernel, {.use = BufferUse::FullGrad, .unit = decision.unit, .group = decision.group}, decision.bytes,
                MemoryCategory::UnshardedGrad);
    return;
  }
  const StorageId storage = bodies_.crossings()[static_cast<std::size_t>(event.index)].storage;
  const BufferKey key{.use = BufferUse::GraphStorage, .storage = storage, .instance = decision.instance};
  if (event.what == Happening::CrossingAllocate)
    allocate_at(kernel, key, event.bytes, storage_category(storage));
  else
    release_at(kernel, key);
}

void ProgramBuilder::body(const SegmentBody& body, std::span<const OutsideDecision> decisions) {
  Task& task = result_.program.tasks.back();
  ComputeBody& ops = std::get<ComputeBody>(result_.bodies.back());
  const auto first_kernel = static_cast<std::int32_t>(task.kernels.size());
  for (BodyOp op : body.ops) {
    if (op.kernel >= 0) op.kernel += first_kernel;
    ops.ops.push_back(op);
  }
  task.kernels.insert(task.kernels.end(), body.kernels.begin(), body.kernels.end());
  std::size_t next_decision = 0;
  for (const BodyEvent& event : body.events) {
    const std::int32_t kernel = first_kernel + event.kernel;
    const BufferKey storage{.use = BufferUse::GraphStorage, .storage = StorageId(event.index)};
    const BufferKey scratch{.use = BufferUse::Scratch};
    switch (event.what) {
      case Happening::Allocate:
        allocate_at(kernel, storage, event.bytes, storage_category(storage.storage));
        break;
      case Happening::Free:
        release_at(kernel, storage);
        break;
      case Happening::Scratch:
        allocate_at(kernel, scratch, event.bytes, MemoryCategory::Temp);
        release_at(kernel, scratch);
        break;
      case Happening::CrossingAllocate:
      case Happening::CrossingLastRead:
      case Happening::GradientWrite:
        decided(event, decisions[next_decision++], kernel);
        break;
    }
  }
}

void ProgramBuilder::end() {
  std::vector<TaskId>& waits = result_.program.tasks.back().waits_on;
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
}

LoweredProgram ProgramBuilder::finish() {
  validate(result_.program);
  return std::move(result_);
}

std::string ProgramBuilder::buffer_label(const BufferKey& key) const {
  if (key.use == BufferUse::GraphStorage || key.use == BufferUse::ConstantBuffer) {
    const Storage& storage = names_.graph.storage(key.storage);
    const std::string_view name =
        storage.name < 0 ? std::string_view("value") : std::string_view(names_.graph.names[static_cast<std::size_t>(storage.name)]);
    if (!storage.made_by.is_set()) return std::string(name);
    const Op& op = names_.graph.op(storage.made_by);
    return fmt::format("{} {} {}{}", names_.segments.all[op.segment.at()].name, name, op_kind_name(op.kind),
                       key.instance == 1 ? " again" : "");
  }
  if (!key.unit.is_set()) return std::string(use_name(key.use));
  const UnitLayout& unit = names_.units[key.unit.at()];
  const bool is_frozen = key.group >= 0 && !unit.groups[static_cast<std::size_t>(key.group)].trainable;
  return fmt::format("unit {} {}{}", unit.name, is_frozen ? "frozen " : "", use_name(key.use));
}

std::string ProgramBuilder::task_label(const TaskHead& head) const {
  if (head.unit.is_set()) return fmt::format("{} {}", verb(head.kind), names_.units[head.unit.at()].name);
  if (!head.first.is_set()) return std::string(verb(head.kind));
  const std::string& first = names_.segments.all[head.first.at()].name;
  if (head.first == head.last) return fmt::format("{} {}", verb(head.kind), first);
  return fmt::format("{} {} to {}", verb(head.kind), first, names_.segments.all[head.last.at()].name);
}

}  // namespace shardplan
