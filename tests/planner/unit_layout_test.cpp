#include "planner/lowering/unit_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

// Stretches of all ranks, laid end to end, are the group; they are equal, and there is less padding than there are ranks.
RC_GTEST_PROP(UnitLayout, EqualStretchesCoverEveryParameterOnce, ()) {
  const TinyJob job = *any_job();
  const KnobChoice choice = *any_choice();
  const TinyCase tiny = tiny_case(job, choice);
  const std::vector<UnitLayout> units = unit_layouts(*tiny.graph, tiny.segments, tiny.plan);

  std::vector<int> times(tiny.graph->table.parameters.size(), 0);
  std::int64_t stored_numel = 0;
  std::int64_t padding_numel = 0;
  for (const UnitLayout& unit : units) {
    for (std::size_t g = 0; g < unit.groups.size(); ++g) {
      const FlatGroup& group = unit.groups[g];
      RC_ASSERT(group.trainable || g + 1 == unit.groups.size());  // trainable first
      RC_ASSERT(!group.slots.empty());
      RC_ASSERT(group.stretch_numel * choice.mesh.shard == group.padded_numel);
      RC_ASSERT(group.padded_numel - group.numel >= 0);
      RC_ASSERT(group.padded_numel - group.numel < choice.mesh.shard);
      std::int64_t end = 0;
      for (const ParameterSlot& slot : group.slots) {
        RC_ASSERT(slot.offset == end);
        end += slot.numel;
        ++times[slot.parameter.at()];
      }
      RC_ASSERT(end == group.numel);
      stored_numel += group.stretch_numel * choice.mesh.shard;
      padding_numel += group.padded_numel - group.numel;
    }
  }
  for (const int t : times) RC_ASSERT(t == 1);
  // Parts add up: what all ranks store together is the model and the padding.
  RC_ASSERT(stored_numel == tiny.graph->table.total_numel() + padding_numel);

  const std::vector<ParameterPlace> places = parameter_places(*tiny.graph, units);
  for (std::size_t p = 0; p < places.size(); ++p) {
    const ParameterPlace& place = places[p];
    const FlatGroup& group = units[place.unit.at()].groups[static_cast<std::size_t>(place.group)];
    RC_ASSERT(group.slots[static_cast<std::size_t>(place.slot)].parameter.at() == p);
  }
}

TEST(UnitLayout, TiedEmbeddingBelongsToTheFirstUnitThatNamesItAndIsUsedAtBothEnds) {
  const TinyCase tiny = tiny_case({.model = {.tied = true}}, {.mesh = {.shard = 2}});
  const std::vector<UnitLayout> units = unit_layouts(*tiny.graph, tiny.segments, tiny.plan);
  const UnitLayout& embed = units.front();
  EXPECT_EQ(embed.name, "embed");
  EXPECT_EQ(embed.groups.front().numel, 37 * 16);
  EXPECT_EQ(embed.segments.front(), SegmentId(0));
  EXPECT_EQ(embed.segments.back(), SegmentId(static_cast<std::int64_t>(tiny.segments.all.size()) - 1));
  // What is left for the head's unit is the final norm.
  EXPECT_EQ(units.back().groups.front().numel, 16);
}

std::string message_of(const TinyCase& tiny) {
  try {
    (void)unit_layouts(*tiny.graph, tiny.segments, tiny.plan);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(UnitLayout, RefusesASegmentWithoutUnit) {
  TinyCase tiny = tiny_case({}, {});
  tiny.plan.units.pop_back();
  EXPECT_EQ(message_of(tiny), "segment \"" + tiny.segments.all.back().name +
                                  "\" is in no unit\n  at: plan#/units\n  try: name each segment in one unit");
}

TEST(UnitLayout, RefusesASegmentInTwoUnits) {
  TinyCase tiny = tiny_case({}, {});
  tiny.plan.units.back().segments.insert(tiny.plan.units.back().segments.begin(), SegmentId(0));
  EXPECT_EQ(message_of(tiny),
            "segment \"" + tiny.segments.all.front().name +
                "\" is in unit \"embed\" and in unit \"head\"\n  at: plan#/units\n  try: name each segment in one unit");
}

TEST(UnitLayout, RefusesASegmentThatTheModelLacks) {
  TinyCase tiny = tiny_case({}, {});
  tiny.plan.units.back().segments.emplace_back(99);
  EXPECT_EQ(message_of(tiny), "unit \"head\" names segment 99, the model has " + std::to_string(tiny.segments.all.size()) +
                                  "\n  at: plan#/units\n  try: plan again for this model");
}

}  // namespace
}  // namespace shardplan
