// Decoders of the Llama kind: llama, mistral, qwen2, qwen3. Their differences are switches of the ModelSpec.
//
// Emits forward ops as the modelling code of transformers 5.24 runs them, in its order; what differs between kernels follows
// OpGraph::kernels. First the side inputs (rotary tables, masks), then embedding, layers, final norm, head, loss.
#pragma once

#include "planner/graph/graph_builder.h"

namespace shardplan {

// Sets ids, targets, loss, logits of the builder's graph.
void build_llama(GraphBuilder& build, const ModelSpec& model);

}  // namespace shardplan
