#include "simulator/exposed_time.h"

#include <algorithm>
#include <set>

namespace shardplan {
namespace {

// An instant at which a collective or a stretch of compute kernels begins or ends.
struct Edge {
  std::chrono::nanoseconds at;
  TaskId collective;  // unset: compute kernels
  std::int32_t change;
};

void add(std::vector<Edge>& edges, std::chrono::nanoseconds start, std::chrono::nanoseconds end, TaskId collective) {
  if (start == end) return;
  edges.push_back({start, collective, +1});
  edges.push_back({end, collective, -1});
}

// The kernels of a task are what its collective leaves of it.
void add_kernels(std::vector<Edge>& edges, const TaskTimes& times) {
  add(edges, times.task.start, times.collective.start, TaskId());
  add(edges, times.collective.end, times.task.end, TaskId());
}

}  // namespace

std::vector<std::chrono::nanoseconds> exposed_times(const StepProgram& program, const std::vector<TaskTimes>& times) {
  std::vector<Edge> edges;
  edges.reserve(4 * program.tasks.size());
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    if (task.collective) add(edges, times[i].collective.start, times[i].collective.end, TaskId(static_cast<std::int64_t>(i)));
    if (program.streams[task.stream.at()] == StreamKind::Compute) add_kernels(edges, times[i]);
  }
  // Edges of one instant may come in any order: between them no time passes.
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });

  std::vector<std::chrono::nanoseconds> exposed(program.tasks.size());
  std::set<TaskId> running;
  std::int32_t computing = 0;
  std::chrono::nanoseconds before{0};
  for (const Edge& edge : edges) {
    if (computing == 0 && !running.empty()) exposed[running.begin()->at()] += edge.at - before;
    before = edge.at;
    if (!edge.collective.is_set()) {
      computing += edge.change;
    } else if (edge.change > 0) {
      running.insert(edge.collective);
    } else {
      running.erase(edge.collective);
    }
  }
  return exposed;
}

}  // namespace shardplan
