#include "planner/lowering/unit_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

// The unit that names each segment. ConfigError when a segment has none or two.
std::vector<UnitId> unit_of_segments(const Segments& segments, const Plan& plan) {
  std::vector<UnitId> unit_of(segments.all.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const SegmentId s : plan.units[u].segments) {
      if (s.at() >= segments.all.size())
        throw ConfigError(
            fmt::format("unit \"{}\" names segment {}, the model has {}", plan.units[u].name, s.value, segments.all.size()),
            "plan#/units", "plan again for this model");
      if (unit_of[s.at()].is_set())
        throw ConfigError(fmt::format("segment \"{}\" is in unit \"{}\" and in unit \"{}\"", segments.all[s.at()].name,
                                      plan.units[unit_of[s.at()].at()].name, plan.units[u].name),
                          "plan#/units", "name each segment in one unit");
      unit_of[s.at()] = UnitId(static_cast<std::int64_t>(u));
    }
  }
  for (std::size_t s = 0; s < unit_of.size(); ++s) {
    if (!unit_of[s].is_set() && !segments.all[s].parameters.empty())
      throw ConfigError(fmt::format("segment \"{}\" is in no unit", segments.all[s].name), "plan#/units",
                        "name each segment in one unit");
  }
  return unit_of;
}

FlatGroup flat_group(const ParameterTable& table, const std::vector<ParameterId>& parameters, bool trainable,
                     std::int32_t shard_degree) {
  FlatGroup group{.trainable = trainable};
  for (const ParameterId p : parameters) {
    const Parameter& parameter = table.parameters[p.at()];
    if (parameter.trainable != trainable) continue;
    group.slots.push_back({.parameter = p, .offset = group.numel, .numel = parameter.numel()});
    group.numel += parameter.numel();
  }
  group.padded_numel = round_up(group.numel, shard_degree);
  group.stretch_numel = group.padded_numel / shard_degree;
  return group;
}

}  // namespace

std::vector<UnitLayout> unit_layouts(const OpGraph& graph, const Segments& segments, const Plan& plan) {
  const std::vector<UnitId> unit_of_segment = unit_of_segments(segments, plan);

  // A parameter belongs to the first unit, in the order of the plan, that names a segment which reads it.
  std::vector<UnitId> owner(graph.table.parameters.size());
  for (std::size_t s = 0; s < segments.all.size(); ++s) {
    for (const ParameterId p : segments.all[s].parameters) {
      UnitId& current = owner[p.at()];
      if (!current.is_set() || unit_of_segment[s] < current) current = unit_of_segment[s];
    }
  }

  std::vector<std::vector<ParameterId>> parameters(plan.units.size());
  for (std::size_t p = 0; p < owner.size(); ++p) {
    CHECK(owner[p].is_set(), "every parameter is read by a segment: " + graph.table.parameters[p].name);
    parameters[owner[p].at()].emplace_back(static_cast<std::int64_t>(p));
  }

  std::vector<UnitLayout> units;
  units.reserve(plan.units.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    UnitLayout unit{.name = plan.units[u].name, .reshard_after_forward = plan.units[u].reshard_after_forward};
    for (const bool trainable : {true, false}) {
      FlatGroup group = flat_group(graph.table, parameters[u], trainable, plan.mesh.shard);
      if (!group.slots.empty()) unit.groups.push_back(std::move(group));
    }
    units.push_back(std::move(unit));
  }
  for (std::size_t s = 0; s < segments.all.size(); ++s) {
    const SegmentId segment(static_cast<std::int64_t>(s));
    for (const ParameterId p : segments.all[s].parameters) {
      std::vector<SegmentId>& readers = units[owner[p.at()].at()].segments;
      if (readers.empty() || readers.back() < segment) readers.push_back(segment);
    }
    // A segment without parameters of its own unit still belongs to it.
    if (const UnitId u = unit_of_segment[s]; u.is_set()) {
      std::vector<SegmentId>& members = units[u.at()].segments;
      if (members.empty() || members.back() < segment) members.push_back(segment);
    }
  }
  return units;
}

std::vector<ParameterPlace> parameter_places(const OpGraph& graph, const std::vector<UnitLayout>& units) {
  std::vector<ParameterPlace> places(graph.table.parameters.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t g = 0; g < units[u].groups.size(); ++g) {
      const std::vector<ParameterSlot>& slots = units[u].groups[g].slots;
      for (std::size_t s = 0; s < slots.size(); ++s)
        places[slots[s].parameter.at()] = {.unit = UnitId(static_cast<std::int64_t>(u)),
                                           .group = static_cast<std::int32_t>(g),
                                           .slot = static_cast<std::int32_t>(s)};
    }
  }
  return places;
}

}  // namespace shardplan
