#include "executor/op_table_attention.h"

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <optional>
#include <tuple>

namespace shardplan {
namespace {

constexpr double kNoDropout = 0.0;

const at::Tensor& in(const Op& op, std::span<at::Tensor> values, std::int32_t i) { return values[op.inputs[i].at()]; }
at::Tensor& out(const Op& op, std::span<at::Tensor> values, std::int32_t i) { return values[op.outputs[i].at()]; }

std::optional<at::Tensor> optional_in(const Op& op, std::span<at::Tensor> values, std::int32_t i) {
  if (i >= op.inputs.count || !op.inputs[i].is_set()) return std::nullopt;
  return values[op.inputs[i].at()];
}

bool is_causal(const Op& op) { return op.ints[0] == 1; }

void set_gradients(const Op& op, std::span<at::Tensor> values, at::Tensor q, at::Tensor k, at::Tensor v) {
  at::Tensor* const made[] = {&q, &k, &v};
  for (std::int32_t i = 0; i < op.outputs.count; ++i)
    if (op.outputs[i].is_set()) out(op, values, i) = std::move(*made[i]);
}

}  // namespace

void run_attention_cpu(const Op& op, std::span<at::Tensor> v) {
  std::tie(out(op, v, 0), out(op, v, 1)) = at::_scaled_dot_product_flash_attention_for_cpu(
      in(op, v, 0), in(op, v, 1), in(op, v, 2), kNoDropout, is_causal(op), optional_in(op, v, 3), op.scalar);
}

void run_attention_cpu_backward(const Op& op, std::span<at::Tensor> v) {
  auto [q_grad, k_grad, v_grad] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      in(op, v, 0), in(op, v, 1), in(op, v, 2), in(op, v, 3), in(op, v, 4), in(op, v, 5), kNoDropout, is_causal(op),
      optional_in(op, v, 6), op.scalar);
  set_gradients(op, v, std::move(q_grad), std::move(k_grad), std::move(v_grad));
}

void run_attention_flash(const Op& op, std::span<at::Tensor> v) {
  auto made = at::_scaled_dot_product_flash_attention(in(op, v, 0), in(op, v, 1), in(op, v, 2), kNoDropout, is_causal(op),
                                                      /*return_debug_mask=*/false, op.scalar);
  out(op, v, 0) = std::move(std::get<0>(made));
  out(op, v, 1) = std::move(std::get<1>(made));
  out(op, v, 2) = std::move(std::get<6>(made));
  out(op, v, 3) = std::move(std::get<7>(made));
}

void run_attention_flash_backward(const Op& op, std::span<at::Tensor> v) {
  const at::Tensor no_sequence_table;  // rows of equal length need none
  const at::Tensor& query = in(op, v, 1);
  const at::Tensor& key = in(op, v, 2);
  auto [q_grad, k_grad, v_grad] = at::_scaled_dot_product_flash_attention_backward(
      in(op, v, 0), query, key, in(op, v, 3), in(op, v, 4), in(op, v, 5), no_sequence_table, no_sequence_table, query.size(2),
      key.size(2), kNoDropout, is_causal(op), in(op, v, 6), in(op, v, 7), op.scalar);
  set_gradients(op, v, std::move(q_grad), std::move(k_grad), std::move(v_grad));
}

void run_attention_efficient(const Op& op, std::span<at::Tensor> v) {
  std::tie(out(op, v, 0), out(op, v, 1), out(op, v, 2), out(op, v, 3)) =
      at::_scaled_dot_product_efficient_attention(in(op, v, 0), in(op, v, 1), in(op, v, 2), optional_in(op, v, 3),
                                                  /*compute_log_sumexp=*/true, kNoDropout, is_causal(op), op.scalar);
}

void run_attention_efficient_backward(const Op& op, std::span<at::Tensor> v) {
  auto [q_grad, k_grad, v_grad, mask_grad] = at::_scaled_dot_product_efficient_attention_backward(
      in(op, v, 0), in(op, v, 1), in(op, v, 2), in(op, v, 3), optional_in(op, v, 8).value_or(at::Tensor{}), in(op, v, 4),
      in(op, v, 5), in(op, v, 6), in(op, v, 7), kNoDropout, {true, true, true, false}, is_causal(op), op.scalar);
  set_gradients(op, v, std::move(q_grad), std::move(k_grad), std::move(v_grad));
}

}  // namespace shardplan
