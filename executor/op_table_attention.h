// The rows of fused attention: one for each kernel that PyTorch calls by its own name. Shapes [B, A, S, D]; part of op_table.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "planner/graph/op_graph.h"

namespace shardplan {

void run_attention_cpu(const Op& op, std::span<at::Tensor> values);
void run_attention_cpu_backward(const Op& op, std::span<at::Tensor> values);
void run_attention_flash(const Op& op, std::span<at::Tensor> values);
void run_attention_flash_backward(const Op& op, std::span<at::Tensor> values);
void run_attention_efficient(const Op& op, std::span<at::Tensor> values);
void run_attention_efficient_backward(const Op& op, std::span<at::Tensor> values);

}  // namespace shardplan
