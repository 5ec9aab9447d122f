#include "core/json_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kProgramFormatVersion = 1;
constexpr std::int64_t kTimelineFormatVersion = 1;
constexpr std::int64_t kMostItems = INT32_MAX;

std::string_view place_name(Place place) { return place == Place::Device ? "device" : "host"; }

// A word of a closed list, by its own parser.
template <class Parser>
auto word(JsonReader& r, const std::string& key, Parser from_name) {
  const std::string text = r.string(key);
  const auto value = from_name(std::string_view(text));
  if (!value) r.fail(key, fmt::format("\"{}\" is no word known here", text), "docs/step_program.md and docs/timeline.md list them");
  return *value;
}

std::optional<Place> place_from_name(std::string_view name) {
  if (name == "device") return Place::Device;
  if (name == "host") return Place::Host;
  return std::nullopt;
}

std::optional<TimelineSource> source_from_name(std::string_view name) {
  if (name == "simulated") return TimelineSource::Simulated;
  if (name == "measured") return TimelineSource::Measured;
  return std::nullopt;
}

std::optional<EffectKind> effect_from_name(std::string_view name) {
  if (name == "allocate") return EffectKind::Allocate;
  if (name == "free") return EffectKind::Free;
  return std::nullopt;
}

void check_header(JsonReader& r, std::string_view kind, std::int64_t version) {
  if (const std::string found = r.string("kind"); found != kind)
    r.fail("kind", fmt::format("expected \"{}\", found \"{}\"", kind, found));
  if (const std::int64_t found = r.integer("schema_version"); found != version)
    r.fail("schema_version", fmt::format("this program reads version {} of \"{}\", the file has version {}", version, kind, found));
}

// Ids are numbers; an unset one is null.
template <class Id>
Json json_from_id(Id id) {
  return id.is_set() ? Json(id.value) : Json(nullptr);
}

template <class Id>
Id id_or_unset(JsonReader& r, const std::string& key, std::size_t table_size) {
  if (!r.has(key)) {
    r.ignore(key);
    return Id();
  }
  return Id(r.integer(key, 0, static_cast<std::int64_t>(table_size) - 1));
}

template <class Id>
Id id_in(JsonReader& r, const std::string& key, std::size_t table_size) {
  return Id(r.integer(key, 0, static_cast<std::int64_t>(table_size) - 1));
}

template <class Id>
std::vector<Id> ids_in(JsonReader& r, const std::string& key, std::size_t table_size) {
  std::vector<Id> ids;
  for (const JsonReader& element : r.array(key)) {
    const std::int64_t value = element.as_integer();
    if (value < 0 || value >= static_cast<std::int64_t>(table_size))
      element.fail("", fmt::format("{} is no position in a table of {}", value, table_size));
    if (!ids.empty() && value <= ids.back().value) element.fail("", "positions stand in ascending order, each once");
    ids.emplace_back(value);
  }
  return ids;
}

template <class Id>
Json json_from_ids(const std::vector<Id>& ids) {
  Json list = Json::array();
  for (const Id id : ids) list.push_back(id.value);
  return list;
}

std::int32_t small(JsonReader& r, const std::string& key, std::int64_t least) {
  return static_cast<std::int32_t>(r.integer(key, least, kMostItems));
}

// --- program ---------------------------------------------------------------------------------------------------------------------

Json json_from_axis(const MeshAxis& axis) { return {{"name", axis.name}, {"degree", axis.degree}, {"stride", axis.stride}}; }

MeshAxis axis_from_json(JsonReader r) {
  MeshAxis axis;
  axis.name = r.string("name");
  axis.degree = small(r, "degree", 1);
  axis.stride = small(r, "stride", 1);
  r.finish();
  return axis;
}

Json json_from_buffer(const Buffer& buffer) {
  return {{"bytes", buffer.bytes},
          {"category", category_name(buffer.category)},
          {"place", place_name(buffer.place)},
          {"pool", json_from_id(buffer.pool)},
          {"label", buffer.label}};
}

Buffer buffer_from_json(JsonReader r, std::size_t num_streams) {
  Buffer buffer;
  buffer.bytes = r.integer("bytes", 0);
  buffer.category = word(r, "category", category_from_name);
  buffer.place = word(r, "place", place_from_name);
  buffer.pool = id_or_unset<StreamId>(r, "pool", num_streams);
  buffer.label = r.string("label");
  r.finish();
  return buffer;
}

Json json_from_task(const Task& task) {
  Json effects = Json::array();
  for (const Effect& effect : task.effects)
    effects.push_back({{"kind", effect.kind == EffectKind::Allocate ? "allocate" : "free"},
                       {"buffer", effect.buffer.value},
                       {"kernel", effect.kernel}});
  Json kernels = Json::array();
  for (const KernelWork& work : task.kernels)
    kernels.push_back({{"compute", compute_class_name(work.compute)},
                       {"dtype", dtype_name(work.dtype)},
                       {"flops", work.flops},
                       {"read_bytes", work.read_bytes},
                       {"written_bytes", work.written_bytes}});
  Json collective = nullptr;
  if (task.collective)
    collective = {
        {"kind", collective_name(task.collective->kind)}, {"axis", task.collective->axis.value}, {"bytes", task.collective->bytes}};
  return {{"kind", task_kind_name(task.kind)},
          {"label", task.label},
          {"stream", task.stream.value},
          {"micro_step", task.micro_step},
          {"waits_on", json_from_ids(task.waits_on)},
          {"effects", std::move(effects)},
          {"kernels", std::move(kernels)},
          {"collective", std::move(collective)},
          {"body", json_from_id(task.body)}};
}

Effect effect_from_json(JsonReader r, std::size_t num_buffers) {
  Effect effect;
  effect.kind = word(r, "kind", effect_from_name);
  effect.buffer = id_in<BufferId>(r, "buffer", num_buffers);
  effect.kernel = small(r, "kernel", 0);
  r.finish();
  return effect;
}

KernelWork kernel_from_json(JsonReader r) {
  KernelWork work;
  work.compute = word(r, "compute", compute_class_from_name);
  work.dtype = word(r, "dtype", dtype_from_name);
  work.flops = r.integer("flops", 0);
  work.read_bytes = r.integer("read_bytes", 0);
  work.written_bytes = r.integer("written_bytes", 0);
  r.finish();
  return work;
}

CollectiveWork collective_from_json(JsonReader r, std::size_t num_axes) {
  CollectiveWork work;
  work.kind = word(r, "kind", collective_from_name);
  work.axis = id_in<AxisId>(r, "axis", num_axes);
  work.bytes = r.integer("bytes", 0);
  r.finish();
  return work;
}

// `program` holds all but the tasks from this one on.
Task task_from_json(JsonReader r, const StepProgram& program) {
  Task task;
  task.kind = word(r, "kind", task_kind_from_name);
  task.label = r.string("label");
  task.stream = id_in<StreamId>(r, "stream", program.streams.size());
  task.micro_step = small(r, "micro_step", 0);
  task.waits_on = ids_in<TaskId>(r, "waits_on", program.tasks.size());
  for (const JsonReader& effect : r.array("effects")) task.effects.push_back(effect_from_json(effect, program.buffers.size()));
  for (const JsonReader& kernel : r.array("kernels")) task.kernels.push_back(kernel_from_json(kernel));
  if (r.has("collective")) task.collective = collective_from_json(r.object("collective"), program.mesh.size());
  r.ignore("collective");
  task.body = id_or_unset<BodyId>(r, "body", static_cast<std::size_t>(kMostItems));
  r.finish();
  return task;
}

// --- timeline --------------------------------------------------------------------------------------------------------------------

Json json_from_span(const TaskSpan& span) {
  return {{"task", span.task.value},
          {"kind", task_kind_name(span.kind)},
          {"label", span.label},
          {"stream", span.stream.value},
          {"micro_step", span.micro_step},
          {"start_nanoseconds", span.start.count()},
          {"end_nanoseconds", span.end.count()},
          {"peak_requested_bytes", span.peak_requested_bytes},
          {"after_requested_bytes", span.after_requested_bytes}};
}

TaskSpan span_from_json(JsonReader r, std::size_t num_streams) {
  TaskSpan span;
  span.task = id_in<TaskId>(r, "task", static_cast<std::size_t>(kMostItems));
  span.kind = word(r, "kind", task_kind_from_name);
  span.label = r.string("label");
  span.stream = id_in<StreamId>(r, "stream", num_streams);
  span.micro_step = small(r, "micro_step", 0);
  span.start = std::chrono::nanoseconds(r.integer("start_nanoseconds"));
  span.end = std::chrono::nanoseconds(r.integer("end_nanoseconds", span.start.count()));
  span.peak_requested_bytes = r.integer("peak_requested_bytes");
  span.after_requested_bytes = r.integer("after_requested_bytes");
  r.finish();
  return span;
}

Json json_from_change(const MemoryChange& change) {
  return {{"at_nanoseconds", change.at.count()},
          {"category", category_name(change.category)},
          {"place", place_name(change.place)},
          {"delta_bytes", change.delta_bytes},
          {"task", json_from_id(change.task)}};
}

MemoryChange change_from_json(JsonReader r) {
  MemoryChange change;
  change.at = std::chrono::nanoseconds(r.integer("at_nanoseconds"));
  change.category = word(r, "category", category_from_name);
  change.place = word(r, "place", place_from_name);
  change.delta_bytes = r.integer("delta_bytes");
  change.task = id_or_unset<TaskId>(r, "task", static_cast<std::size_t>(kMostItems));
  r.finish();
  return change;
}

Json json_from_total(const CollectiveTotal& total) {
  return {{"collective", collective_name(total.kind)},
          {"axis", total.axis},
          {"calls", total.calls},
          {"bytes_per_rank", total.bytes_per_rank},
          {"busy_nanoseconds", total.busy.count()},
          {"exposed_nanoseconds", total.exposed.count()}};
}

CollectiveTotal total_from_json(JsonReader r) {
  CollectiveTotal total;
  total.kind = word(r, "collective", collective_from_name);
  total.axis = r.string("axis");
  total.calls = r.integer("calls", 0);
  total.bytes_per_rank = r.integer("bytes_per_rank", 0);
  total.busy = std::chrono::nanoseconds(r.integer("busy_nanoseconds", 0));
  total.exposed = std::chrono::nanoseconds(r.integer("exposed_nanoseconds", 0));
  r.finish();
  return total;
}

CategoryBytes categories_from_json(JsonReader r) {
  CategoryBytes bytes;
  for (const auto& [key, ignored] : r.raw().items()) {
    const std::optional<MemoryCategory> category = category_from_name(key);
    if (!category) r.fail(key, fmt::format("\"{}\" is no memory category", key), "docs/timeline.md lists them");
    bytes[*category] = r.integer(key);
  }
  return bytes;
}

std::vector<StreamKind> streams_from_json(JsonReader& r) {
  std::vector<StreamKind> streams;
  for (const JsonReader& element : r.array("streams")) {
    const std::optional<StreamKind> stream = stream_kind_from_name(element.as_string());
    if (!stream) element.fail("", fmt::format("\"{}\" is no stream", element.as_string()), "compute, gather, reduce or copy");
    streams.push_back(*stream);
  }
  return streams;
}

Json json_from_streams(const std::vector<StreamKind>& streams) {
  Json list = Json::array();
  for (const StreamKind stream : streams) list.push_back(stream_kind_name(stream));
  return list;
}

template <class T, class Writer>
Json list_of(const std::vector<T>& items, Writer json_from) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(json_from(item));
  return list;
}

}  // namespace

Json json_from_program(const StepProgram& program) {
  return {{"schema_version", kProgramFormatVersion},
          {"kind", "shardplan.step_program"},
          {"phase", phase_name(program.phase)},
          {"role", program.role},
          {"mesh", list_of(program.mesh, json_from_axis)},
          {"streams", json_from_streams(program.streams)},
          {"buffers", list_of(program.buffers, json_from_buffer)},
          {"resident", json_from_ids(program.resident)},
          {"tasks", list_of(program.tasks, json_from_task)}};
}

StepProgram program_from_json(const Json& document, const std::string& file) {
  JsonReader r(document, file);
  check_header(r, "shardplan.step_program", kProgramFormatVersion);
  StepProgram program;
  program.phase = word(r, "phase", phase_from_name);
  program.role = r.string("role");
  for (const JsonReader& axis : r.array("mesh")) program.mesh.push_back(axis_from_json(axis));
  program.streams = streams_from_json(r);
  for (const JsonReader& buffer : r.array("buffers")) program.buffers.push_back(buffer_from_json(buffer, program.streams.size()));
  program.resident = ids_in<BufferId>(r, "resident", program.buffers.size());
  for (const JsonReader& task : r.array("tasks")) program.tasks.push_back(task_from_json(task, program));
  r.finish();
  try {
    validate(program);
  } catch (const CheckFailure& broken) {
    const std::string law = broken.what();
    throw ConfigError("the program breaks a law: " + law.substr(0, law.find('\n')), file);
  }
  return program;
}

Json json_from_timeline(const Timeline& timeline) {
  return {{"schema_version", kTimelineFormatVersion},
          {"kind", "shardplan.timeline"},
          {"source", timeline.source == TimelineSource::Simulated ? "simulated" : "measured"},
          {"phase", phase_name(timeline.phase)},
          {"rank", timeline.rank},
          {"duration_nanoseconds", timeline.duration.count()},
          {"peak_requested_bytes", timeline.peak_requested_bytes},
          {"peak_task", json_from_id(timeline.peak_task)},
          {"at_start_bytes", json_from_categories(timeline.at_start)},
          {"at_peak_bytes", json_from_categories(timeline.at_peak)},
          {"host_peak_bytes", timeline.host_peak_bytes},
          {"collectives", list_of(timeline.collectives, json_from_total)},
          {"streams", json_from_streams(timeline.streams)},
          {"tasks", list_of(timeline.tasks, json_from_span)},
          {"memory", list_of(timeline.memory, json_from_change)}};
}

Timeline timeline_from_json(const Json& document, const std::string& file) {
  JsonReader r(document, file);
  check_header(r, "shardplan.timeline", kTimelineFormatVersion);
  Timeline timeline;
  timeline.source = word(r, "source", source_from_name);
  timeline.phase = word(r, "phase", phase_from_name);
  timeline.rank = small(r, "rank", 0);
  timeline.duration = std::chrono::nanoseconds(r.integer("duration_nanoseconds", 0));
  timeline.peak_requested_bytes = r.integer("peak_requested_bytes", 0);
  timeline.peak_task = id_or_unset<TaskId>(r, "peak_task", static_cast<std::size_t>(kMostItems));
  timeline.at_start = categories_from_json(r.object("at_start_bytes"));
  timeline.at_peak = categories_from_json(r.object("at_peak_bytes"));
  timeline.host_peak_bytes = r.integer("host_peak_bytes", 0);
  for (const JsonReader& total : r.array("collectives")) timeline.collectives.push_back(total_from_json(total));
  timeline.streams = streams_from_json(r);
  for (const JsonReader& span : r.array("tasks")) timeline.tasks.push_back(span_from_json(span, timeline.streams.size()));
  for (const JsonReader& change : r.array("memory")) timeline.memory.push_back(change_from_json(change));
  r.finish();
  return timeline;
}

Json json_from_categories(const CategoryBytes& bytes) {
  Json object = Json::object();
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (bytes[category] != 0) object[std::string(category_name(category))] = bytes[category];
  }
  return object;
}

}  // namespace shardplan
