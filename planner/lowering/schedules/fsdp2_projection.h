// A plan of ours as the switches of stock FSDP2 that come nearest to it, and the program that stock code then runs.
//
// Kept: mesh, batch, accumulation, dtypes, units of whole layers and their resharding, joint or split root, optimizer form.
// Changed, because fully_shard and checkpoint wrappers know modules only: halves of a layer become the layer; a layer of which
// anything is recomputed is checkpointed whole; a joint root stays gathered. Gathers are prefetched as FSDP2 does it, whatever the
// plan says; kernels are those of transformers on CUDA, with full logits. Errors: ConfigError for a plan for CPU ranks, with tensor
// parallelism, or an optimizer that torch.optim has not in that form.
#pragma once

#include "planner/lowering/lowered_program.h"
#include "planner/lowering/schedules/fsdp2.h"

namespace shardplan {

[[nodiscard]] Fsdp2Switches project_on_fsdp2(const Plan& plan, const Segments& segments);

// Phases step1 and step2 of the worst rank, the first.
[[nodiscard]] Lowered lower_fsdp2(const Plan& plan);

}  // namespace shardplan
