// The only creator of buffers and tasks: makes a LoweredProgram from what a schedule emits.
//
// Numbers every allocation, places effects between kernels, names tasks and buffers. Labels cost time and nothing but people read
// them: a caller that only counts may leave them out. Errors: CHECK when a schedule frees what is not alive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/lowering/task_sink.h"

namespace shardplan {

struct ProgramNames {
  const OpGraph& graph;
  const Segments& segments;
  const std::vector<UnitLayout>& units;
};

enum class Labels : std::uint8_t {
  None,
  Tasks,  // buffers have none
  All,
};

class ProgramBuilder final : public TaskSink {
 public:
  // `mesh`: shard and replicate degree.
  ProgramBuilder(Phase phase, const ProgramNames& names, const SegmentBodies& bodies, const MeshDegrees& mesh, Labels labels);

  void resident(const BufferKey& key, std::int64_t bytes, MemoryCategory category) override;
  TaskId begin(const TaskHead& head) override;
  void wait(TaskId earlier) override;
  void allocate(const BufferKey& key, std::int64_t bytes, MemoryCategory category) override;
  void release(const BufferKey& key, std::int64_t bytes) override;
  void kernel(const KernelWork& work) override;
  void collective(const CollectiveWork& work) override;
  void body(const SegmentBody& body, std::span<const OutsideDecision> decisions) override;
  void end() override;

  // The same by handle, for schedules that name their buffers and tasks themselves. `buffer.pool` is the caller's choice.
  BufferId resident(Buffer buffer, const BufferRole& role);
  TaskId begin(const TaskHead& head, std::string label);
  BufferId allocate(Buffer buffer, const BufferRole& role);
  void release(BufferId buffer);
  [[nodiscard]] const StepProgram& program() const { return result_.program; }

  // The finished program; the builder is empty afterwards.
  [[nodiscard]] LoweredProgram finish();

 private:
  [[nodiscard]] BufferId& place_of(const BufferKey& key);
  BufferId create(const BufferKey& key, std::int64_t bytes, MemoryCategory category);
  [[nodiscard]] std::int32_t kernel_of_release() const;
  void allocate_at(std::int32_t kernel, const BufferKey& key, std::int64_t bytes, MemoryCategory category);
  void release_at(std::int32_t kernel, const BufferKey& key);
  void decided(const BodyEvent& event, const OutsideDecision& decision, std::int32_t first_kernel);
  [[nodiscard]] MemoryCategory storage_category(StorageId storage) const;
  [[nodiscard]] std::string buffer_label(const BufferKey& key) const;
  [[nodiscard]] std::string task_label(const TaskHead& head) const;

  ProgramNames names_;
  const SegmentBodies& bodies_;
  Labels labels_;
  LoweredProgram result_;
  std::vector<BufferId> storages_;  // alive, by StorageId * 2 + instance
  struct Alive {
    BufferKey key;
    BufferId buffer;
  };
  std::vector<Alive> others_;  // alive buffers that are no storages
};

}  // namespace shardplan
