#include "simulator/trace_writers.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/memory_category.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

// The trace format counts in microseconds; integer nanoseconds become an exact decimal of them.
std::string microseconds(std::chrono::nanoseconds t) { return fmt::format("{}.{:03}", t.count() / 1000, t.count() % 1000); }

// One line of the trace. `rest` is JSON without the braces around it.
class TraceText {
 public:
  void add(std::string_view rest) {
    text_ += first_ ? "\n{" : ",\n{";
    text_ += rest;
    text_ += "}";
    first_ = false;
  }
  [[nodiscard]] std::string closed() const { return text_ + "\n]}\n"; }

 private:
  std::string text_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  bool first_ = true;
};

std::string json_text(std::string_view text) { return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace); }

void add_names(TraceText& trace, const Timeline& timeline, std::size_t process) {
  const std::string_view source = timeline.source == TimelineSource::Simulated ? "simulated" : "measured";
  const std::string name = fmt::format("{} {} rank {}", phase_name(timeline.phase), source, timeline.rank);
  trace.add(fmt::format(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", process, json_text(name)));
  trace.add(fmt::format(R"("ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}})", process));
  for (std::size_t stream = 0; stream < timeline.streams.size(); ++stream) {
    const std::string stream_name(stream_kind_name(timeline.streams[stream]));
    trace.add(fmt::format(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})", process, stream,
                          json_text(stream_name)));
    trace.add(
        fmt::format(R"("ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}})", process, stream));
  }
}

void add_tasks(TraceText& trace, const Timeline& timeline, std::size_t process) {
  for (const TaskSpan& span : timeline.tasks) {
    const std::string label = span.label.empty() ? std::string(task_kind_name(span.kind)) : span.label;
    trace.add(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{"task":{},"micro_step":{},)"
                          R"("peak_requested_bytes":{},"after_requested_bytes":{}}})",
                          process, span.stream.value, microseconds(span.start), microseconds(span.end - span.start),
                          json_text(label), task_kind_name(span.kind), span.task.value, span.micro_step, span.peak_requested_bytes,
                          span.after_requested_bytes));
  }
}

void add_counter(TraceText& trace, std::size_t process, std::chrono::nanoseconds at, const std::string& name, std::int64_t bytes) {
  trace.add(fmt::format(R"("ph":"C","pid":{},"ts":{},"name":{},"args":{{"bytes":{}}})", process, microseconds(at), json_text(name),
                        bytes));
}

// One sample per counter and instant: the level after all changes of that instant.
void add_memory(TraceText& trace, const Timeline& timeline, std::size_t process) {
  std::map<std::string, std::int64_t> levels;
  std::map<std::string, std::int64_t> changed;
  constexpr const char* kTotal = "device total";
  levels[kTotal] = timeline.at_start.total();
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (timeline.at_start[category] != 0) levels[std::string(category_name(category))] = timeline.at_start[category];
  }
  for (const auto& [name, bytes] : levels) add_counter(trace, process, std::chrono::nanoseconds(0), name, bytes);
  for (std::size_t i = 0; i < timeline.memory.size(); ++i) {
    const MemoryChange& change = timeline.memory[i];
    std::string name(category_name(change.category));
    if (change.place == Place::Host) name += " (host)";
    changed[name] = levels[name] += change.delta_bytes;
    if (change.place == Place::Device) changed[kTotal] = levels[kTotal] += change.delta_bytes;
    if (i + 1 < timeline.memory.size() && timeline.memory[i + 1].at == change.at) continue;
    for (const auto& [counter, bytes] : changed) add_counter(trace, process, change.at, counter, bytes);
    changed.clear();
  }
}

}  // namespace

std::string perfetto_trace(const std::vector<Timeline>& timelines) {
  TraceText trace;
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    const std::size_t process = i + 1;  // viewers take process 0 for the idle task
    add_names(trace, timelines[i], process);
    add_tasks(trace, timelines[i], process);
    add_memory(trace, timelines[i], process);
  }
  return trace.closed();
}

}  // namespace shardplan
