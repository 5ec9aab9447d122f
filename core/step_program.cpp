#include "core/step_program.h"

#include <array>

#include "core/error.h"

namespace shardplan {
namespace {

// Each table stands in the order of its enumeration.
constexpr std::array<std::string_view, 5> kPhases = {"load", "step1", "step2", "eval", "save"};
constexpr std::array<std::string_view, kNumTaskKinds> kTaskKinds = {
    "load",           "input",      "gather",    "free",      "forward",        "recompute", "backward",
    "reduce_scatter", "all_reduce", "grad_norm", "clip_grad", "optimizer_step", "zero_grad", "save"};
constexpr std::array<std::string_view, 4> kCollectives = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"};
constexpr std::array<std::string_view, 4> kStreams = {"compute", "gather", "reduce", "copy"};
constexpr std::array<std::string_view, 6> kComputeClasses = {"matmul", "attention", "elementwise", "reduction", "gather", "copy"};

template <class Enum, std::size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto position = static_cast<std::size_t>(value);
  CHECK(position < N, "an enumerator is one of its closed list");
  return names[position];
}

template <class Enum, std::size_t N>
std::optional<Enum> value_in(const std::array<std::string_view, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <class Id, class Table>
bool in_range(Id id, const Table& table) {
  return id.is_set() && id.at() < table.size();
}

enum class Life : std::uint8_t { Unborn, Alive, Dead };

void validate_tables(const StepProgram& program, std::vector<Life>& life) {
  for (const MeshAxis& axis : program.mesh)
    CHECK(axis.degree >= 1 && axis.stride >= 1, "a mesh axis has a degree and a stride of at least 1");
  for (const Buffer& buffer : program.buffers) {
    CHECK(buffer.bytes >= 0, "a buffer has a size that is not negative");
    CHECK(!buffer.pool.is_set() || in_range(buffer.pool, program.streams), "a buffer's pool is a stream of the program");
  }
  BufferId before;
  for (const BufferId id : program.resident) {
    CHECK(in_range(id, program.buffers), "a resident buffer is a buffer of the program");
    CHECK(before < id, "resident buffers stand in ascending order, each once");
    life[id.at()] = Life::Alive;
    before = id;
  }
}

void validate_effects(const StepProgram& program, const Task& task, std::vector<Life>& life) {
  std::int32_t kernel = 0;
  for (const Effect& effect : task.effects) {
    CHECK(in_range(effect.buffer, program.buffers), "an effect names a buffer of the program: " + task.label);
    CHECK(effect.kernel >= kernel, "effects of a task are ordered by kernel: " + task.label);
    kernel = effect.kernel;
    Life& state = life[effect.buffer.at()];
    const std::string& name = program.buffers[effect.buffer.at()].label;
    if (effect.kind == EffectKind::Allocate) {
      CHECK(state == Life::Unborn, "a buffer is allocated once: " + name + " in " + task.label);
      state = Life::Alive;
    } else {
      CHECK(state == Life::Alive, "a buffer is freed once, while it is alive: " + name + " in " + task.label);
      state = Life::Dead;
    }
  }
}

void validate_task(const StepProgram& program, const Task& task, TaskId id) {
  CHECK(in_range(task.stream, program.streams), "a task runs on a stream of the program: " + task.label);
  TaskId before;
  for (const TaskId awaited : task.waits_on) {
    CHECK(awaited.is_set() && awaited < id, "a task waits on earlier tasks only: " + task.label);
    CHECK(before < awaited, "awaited tasks stand in ascending order, each once: " + task.label);
    before = awaited;
  }
  for (const KernelWork& work : task.kernels)
    CHECK(work.flops >= 0 && work.read_bytes >= 0 && work.written_bytes >= 0, "work is not negative: " + task.label);
  if (task.collective) {
    CHECK(in_range(task.collective->axis, program.mesh), "a collective runs on an axis of the mesh: " + task.label);
    CHECK(task.collective->bytes >= 0, "a collective moves a number of bytes that is not negative: " + task.label);
  }
}

}  // namespace

std::string_view phase_name(Phase phase) { return name_in(kPhases, phase); }
std::optional<Phase> phase_from_name(std::string_view name) { return value_in<Phase>(kPhases, name); }
std::string_view task_kind_name(TaskKind kind) { return name_in(kTaskKinds, kind); }
std::optional<TaskKind> task_kind_from_name(std::string_view name) { return value_in<TaskKind>(kTaskKinds, name); }
std::string_view collective_name(CollectiveKind kind) { return name_in(kCollectives, kind); }
std::optional<CollectiveKind> collective_from_name(std::string_view name) { return value_in<CollectiveKind>(kCollectives, name); }
std::string_view stream_kind_name(StreamKind kind) { return name_in(kStreams, kind); }
std::optional<StreamKind> stream_kind_from_name(std::string_view name) { return value_in<StreamKind>(kStreams, name); }
std::string_view compute_class_name(ComputeClass c) { return name_in(kComputeClasses, c); }
std::optional<ComputeClass> compute_class_from_name(std::string_view name) { return value_in<ComputeClass>(kComputeClasses, name); }

void validate(const StepProgram& program) {
  std::vector<Life> life(program.buffers.size(), Life::Unborn);
  validate_tables(program, life);
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    validate_task(program, program.tasks[i], TaskId(static_cast<std::int64_t>(i)));
    validate_effects(program, program.tasks[i], life);
  }
}

}  // namespace shardplan
