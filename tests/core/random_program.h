// Valid StepPrograms at random, for properties: every id in range, every buffer born and freed at most once.
#pragma once

#include <rapidcheck.h>

#include "core/step_program.h"

namespace shardplan {

namespace detail {

template <class Enum>
Enum any_of(int count) {
  return static_cast<Enum>(*rc::gen::inRange(0, count));
}

inline Task random_task(StepProgram& program, std::vector<BufferId>& alive) {
  Task task;
  task.kind = any_of<TaskKind>(kNumTaskKinds);
  task.stream = StreamId(*rc::gen::inRange<std::int64_t>(0, static_cast<std::int64_t>(program.streams.size())));
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    if (*rc::gen::inRange(0, 4) == 0) task.waits_on.emplace_back(static_cast<std::int64_t>(i));
  }
  const int num_kernels = *rc::gen::inRange(0, 4);
  for (int i = 0; i < num_kernels; ++i)
    task.kernels.push_back({.compute = any_of<ComputeClass>(6),
                            .dtype = any_of<DType>(9),
                            .flops = *rc::gen::inRange<std::int64_t>(0, 1'000'000'000),
                            .read_bytes = *rc::gen::inRange<std::int64_t>(0, 1'000'000),
                            .written_bytes = *rc::gen::inRange<std::int64_t>(0, 1'000'000)});
  if (*rc::gen::inRange(0, 3) == 0)
    task.collective =
        CollectiveWork{.kind = any_of<CollectiveKind>(4),
                       .axis = AxisId(*rc::gen::inRange<std::int64_t>(0, static_cast<std::int64_t>(program.mesh.size()))),
                       .bytes = *rc::gen::inRange<std::int64_t>(0, 1'000'000)};
  // Kernel 0 .. num_kernels: the last one stands for "after all kernels".
  for (std::int32_t kernel = 0; kernel <= num_kernels; ++kernel) {
    for (int births = *rc::gen::inRange(0, 3); births > 0; --births) {
      const BufferId id(static_cast<std::int64_t>(program.buffers.size()));
      program.buffers.push_back({.bytes = *rc::gen::inRange<std::int64_t>(0, 1'000'000),
                                 .category = any_of<MemoryCategory>(kNumMemoryCategories),
                                 .place = *rc::gen::inRange(0, 5) == 0 ? Place::Host : Place::Device,
                                 .pool = *rc::gen::inRange(0, 2) == 0 ? StreamId() : task.stream,
                                 .label = "buffer " + std::to_string(id.value)});
      alive.push_back(id);
      task.effects.push_back({.kind = EffectKind::Allocate, .buffer = id, .kernel = kernel});
    }
    for (int deaths = *rc::gen::inRange(0, 3); deaths > 0 && !alive.empty(); --deaths) {
      const auto at = *rc::gen::inRange<std::size_t>(0, alive.size());
      task.effects.push_back({.kind = EffectKind::Free, .buffer = alive[at], .kernel = kernel});
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  if (*rc::gen::inRange(0, 2) == 0) task.body = BodyId(*rc::gen::inRange<std::int64_t>(0, 100));
  task.micro_step = *rc::gen::inRange(0, 4);
  task.label = *rc::gen::element<std::string>("", "backward of layers.3 mlp", "a \"quoted\" / ~ label");
  return task;
}

}  // namespace detail

inline rc::Gen<StepProgram> random_program() {
  return rc::gen::exec([] {
    StepProgram program;
    program.phase = detail::any_of<Phase>(5);
    program.role = "every rank";
    program.mesh = {{.name = "shard", .degree = *rc::gen::inRange(1, 9), .stride = 1},
                    {.name = "replicate", .degree = 2, .stride = 8}};
    program.streams = {StreamKind::Compute, StreamKind::Gather, StreamKind::Reduce, StreamKind::Copy};
    std::vector<BufferId> alive;
    for (int residents = *rc::gen::inRange(0, 3); residents > 0; --residents) {
      const BufferId id(static_cast<std::int64_t>(program.buffers.size()));
      program.buffers.push_back({.bytes = *rc::gen::inRange<std::int64_t>(0, 1'000'000),
                                 .category = MemoryCategory::ShardedParam,
                                 .place = Place::Device,
                                 .pool = StreamId(0),
                                 .label = "resident"});
      program.resident.push_back(id);
      alive.push_back(id);
    }
    const int num_tasks = *rc::gen::inRange(0, 12);
    for (int i = 0; i < num_tasks; ++i) {
      Task task = detail::random_task(program, alive);
      program.tasks.push_back(std::move(task));
    }
    return program;
  });
}

}  // namespace shardplan

// What a counterexample prints.
namespace rc {
template <>
struct Arbitrary<shardplan::StepProgram> {
  static Gen<shardplan::StepProgram> arbitrary() { return shardplan::random_program(); }
};
}  // namespace rc
