// What the tasks of one unit do to its flat buffers: gather, reduce, all-reduce, the norm of gradients, clipping, the optimizer
// step.
//
// Births and deaths of the buffers are the caller's, who follows the program's effects; these functions only move and compute.
// Part of run_program. Letters as in docs/schedule_shardplan.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/collectives.h"
#include "executor/rank_state.h"
#include "planner/lowering/unit_layout.h"

namespace shardplan {

// The mesh of a program as these functions need it; an axis of degree 1 is unset.
struct MeshAxes {
  AxisId shard, replicate;
};
[[nodiscard]] MeshAxes mesh_axes(const StepProgram& program);

// Casts the own stretch into its place and lets the group fill the rest. Requires: gathered_param attached.
void gather_group(GroupState& group, const FlatGroup& layout, const RankState& state, const MeshAxes& mesh,
                  Collectives& collectives);

void zero_padding(const FlatBuffer& full, const FlatGroup& layout);

// Hands the reduced own stretch of full_grad to sharded_grad: copies it, or adds it to what earlier micro-steps left.
void keep_reduced_stretch(GroupState& group, const FlatGroup& layout, const RankState& state, bool adds);

// Global norm of all gradients, in fp64 over groups and ranks of the shard axis.
[[nodiscard]] double gradient_norm(RankState& state, const std::vector<UnitLayout>& units, const MeshAxes& mesh,
                                   Collectives& collectives);

void scale_gradients(RankState& state, const std::vector<UnitLayout>& units, double factor);

}  // namespace shardplan
