// Appends the backward ops of every parameter that trains.
//
// Before: forward ops. After: forward ops, then backward ops in exact reverse order of the forward ops, as autograd's engine runs
// them; contributions to one gradient are added in that order (the first is taken over, each further one an Add). Only gradients
// that lead to a trainable parameter are computed. Each parameter contribution ends in an AccumulateGrad op.
// Views of a gradient share its storage, as in autograd.
//
// Judged bit for bit against autograd in tests/executor.
#pragma once

#include "planner/graph/op_graph.h"

namespace shardplan {

// `input_requires_grad`: a value entering from outside that needs a gradient too (a part of a model examined alone); unset: none.
void differentiate(OpGraph& graph, ValueId loss, ValueId input_requires_grad = {});

}  // namespace shardplan
