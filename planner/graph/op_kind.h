// The closed list of operations. Each is one ATen call on device, or a view; the executor's op table has exactly one row for each.
//
// The comment gives operands -> results, then attributes. Shapes as in op_graph.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardplan {

enum class OpKind : std::uint8_t {
  // Views: no kernel, the result shares the operand's storage. The result value holds sizes, strides, offset.
  View,       // x -> reshaped without copy
  Transpose,  // x -> ints = {dim0, dim1}
  Slice,      // x -> ints = {dim, start, length}
  Expand,     // x -> result's sizes, stride 0 where expanded

  // Makers.
  Arange,    // -> [ints[0]] of dtype
  Full,      // -> result's sizes, filled with scalar, of dtype
  LossSeed,  // -> [] fp32: 1 / number of target tokens of the step

  // Copies and casts.
  Clone,          // x -> contiguous copy
  Cast,           // x -> dtype, keeps a dense non-overlapping layout's strides
  Cat,            // x... -> joined along ints[0]
  SliceBackward,  // g -> zeros of the result's sizes with g written at ints = {dim, start, length}

  // Pointwise.
  Add,
  Sub,
  Mul,  // a, b -> broadcast
  AddScalar,
  MulScalar,
  DivScalar,
  PowScalar,  // x -> with scalar; an optional second input names the host scalar that stock code saves
  Div,        // a, b
  Neg,
  Rsqrt,
  Cos,
  Sin,  // x
  LessEqual,
  GreaterThan,
  LogicalAnd,
  LogicalNot,  // -> bool
  MaskedFill,  // x, mask -> x with scalar where mask; ints[0] = 1: in place (result is x)
  Silu,
  SiluBackward,  // x; g, x

  // Reductions.
  MeanLast,         // x -> mean over the last dim, kept as 1
  SumLast,          // x -> sum over the last dim, kept as 1
  SumLeading,       // x -> sum over all dims but the last
  Sum,              // x -> sum over dim ints[0], not kept
  Softmax,          // x -> over the last dim, in dtype (fp32 inside when x is 16-bit and dtype is fp32)
  SoftmaxBackward,  // g, y
  SafeSoftmax,      // x -> as Softmax, rows of -inf give 0

  // Products.
  Linear,  // x [.., in], W [out, in], (b [out]) -> [.., out]
  Mm,      // a [m, k], b [k, n] -> [m, n]
  Bmm,     // a [n, i, k], b [n, k, j] -> [n, i, j]

  // Lookups and loss.
  Embedding,               // W [V, H], ids -> [.., H]; ints[0] = row without gradient, -1 none
  EmbeddingDenseBackward,  // g, ids -> [V, H]; ints[0] as in Embedding
  LogSoftmax,              // x -> fp32 over the last dim
  LogSoftmaxBackward,      // g, y -> input gradient
  NllLoss,                 // logp [T, V], targets [T] -> loss [], total_weight []; ints[0] = 1 mean, 2 sum; ignores -100
  NllLossBackward,         // g [], logp, targets, total_weight -> [T, V]
  ConstantPad,             // x -> padded by ints = {left, right} along the last dim with scalar

  // Fused attention; scale = scalar, ints[0] = 1: causal.
  AttentionCpu,                // q, k, v, (mask) -> out, logsumexp
  AttentionCpuBackward,        // g, q, k, v, out, logsumexp, (mask) -> gq, gk, gv
  AttentionFlash,              // q, k, v -> out, logsumexp, rng state, unused
  AttentionFlashBackward,      // g, q, k, v, out, logsumexp, rng state, unused -> gq, gk, gv
  AttentionEfficient,          // q, k, v, (mask) -> out, logsumexp, seed, offset
  AttentionEfficientBackward,  // g, q, k, v, out, logsumexp, seed, offset, (mask) -> gq, gk, gv

  // End of a gradient: one contribution to the gradient of `parameter`.
  AccumulateGrad,  // g ->
};

[[nodiscard]] std::string_view op_kind_name(OpKind kind);
[[nodiscard]] bool is_view(OpKind kind);

}  // namespace shardplan
