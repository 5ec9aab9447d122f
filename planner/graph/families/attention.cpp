#include "planner/graph/families/attention.h"

#include <cmath>
#include <limits>

#include "core/units.h"

namespace shardplan {
namespace {

// Does this kernel see a mask even where every layer is fully causal?
bool needs_causal_mask(const Kernels& kernels) {
  return kernels.padding_mask || kernels.attention == AttentionKernel::Eager || kernels.attention == AttentionKernel::Math;
}

// What stands for "not allowed": the composed softmax of the model code takes the least number, the library's kernels take -inf.
double forbidden(const OpGraph& graph) {
  if (graph.kernels.attention != AttentionKernel::Eager) return -std::numeric_limits<double>::infinity();
  if (graph.compute == DType::BF16) return -3.3895313892515355e38;
  if (graph.compute == DType::F16) return -65504.0;
  return -static_cast<double>(std::numeric_limits<float>::max());
}

// [B, K, S, D] -> [B, A, S, D], each key/value head `times` times.
ValueId repeat_heads(GraphBuilder& build, ValueId x, std::int64_t times) {
  if (times == 1) return x;
  const Dims s = build.sizes(x);
  const ValueId wide = build.expand(build.view(x, Dims{s[0], s[1], 1, s[2], s[3]}), Dims{s[0], s[1], times, s[2], s[3]});
  return build.reshape(wide, Dims{s[0], s[1] * times, s[2], s[3]});
}

// The same by repeat_interleave, which copies even where a view would do.
ValueId copied_heads(GraphBuilder& build, ValueId x, std::int64_t times) {
  if (times == 1) return x;
  const Dims s = build.sizes(x);
  const ValueId wide = build.expand(build.view(x, Dims{s[0], s[1], 1, s[2], s[3]}), Dims{s[0], s[1], times, s[2], s[3]});
  return build.view(build.clone(wide), Dims{s[0], s[1] * times, s[2], s[3]});
}

// Batched product over the two leading dimensions: [B, A, i, k] x [B, A, k, j].
ValueId matmul(GraphBuilder& build, ValueId a, ValueId b) {
  const Dims sa = build.sizes(a), sb = build.sizes(b);
  const ValueId a3 = build.reshape(a, Dims{sa[0] * sa[1], sa[2], sa[3]});
  const ValueId b3 = build.reshape(b, Dims{sb[0] * sb[1], sb[2], sb[3]});
  return build.view(build.bmm(a3, b3), Dims{sa[0], sa[1], sa[2], sb[3]});
}

ValueId eager(GraphBuilder& build, ValueId q, ValueId k, ValueId v, ValueId mask, double scale) {
  const OpGraph& graph = build.graph();
  const ValueId host = build.outside(StorageRole::HostScalar, "attention scale", DType::F64, Dims{});
  ValueId scores = build.times_host_scalar(matmul(build, q, build.transpose(k, 2, 3)), scale, host);
  if (mask.is_set()) scores = build.binary(OpKind::Add, scores, mask);
  // CUDA's softmax reads fp16 and gives fp32; otherwise the values are cast before.
  if (graph.kernels.device == DeviceKind::Cpu || graph.compute == DType::BF16) scores = build.cast(scores, DType::F32);
  const ValueId weights = build.cast(build.rowwise(OpKind::Softmax, scores, DType::F32), graph.compute);
  return matmul(build, weights, v);
}

// The library's composed form: both factors are scaled by the root of the scale, 16-bit values are worked on in fp32.
ValueId math(GraphBuilder& build, ValueId q, ValueId k, ValueId v, ValueId mask, double scale, std::int64_t times) {
  const DType compute = build.graph().compute;
  q = build.cast(q, DType::F32);
  k = build.cast(k, DType::F32);
  v = build.cast(v, DType::F32);
  q = build.with_scalar(OpKind::MulScalar, q, std::sqrt(scale));
  k = copied_heads(build, k, times);
  v = copied_heads(build, v, times);
  ValueId scores = matmul(build, q, build.with_scalar(OpKind::MulScalar, build.transpose(k, 2, 3), std::sqrt(scale)));
  if (mask.is_set()) scores = build.binary(OpKind::Add, scores, build.cast(mask, DType::F32));
  const ValueId weights = build.rowwise(OpKind::SafeSoftmax, scores, DType::F32);
  return build.cast(matmul(build, weights, v), compute);
}

ValueId pad_heads(GraphBuilder& build, ValueId x, std::int64_t pad) { return pad == 0 ? x : build.pad_last(x, 0, pad, 0.0); }

ValueId flash(GraphBuilder& build, ValueId q, ValueId k, ValueId v, double scale) {
  const std::int64_t head_dim = build.sizes(q)[3], pad = round_up(head_dim, 8) - head_dim;
  const ValueId out = build.attention(OpKind::AttentionFlash, pad_heads(build, q, pad), pad_heads(build, k, pad),
                                      pad_heads(build, v, pad), ValueId{}, scale, true);
  return pad == 0 ? out : build.slice(out, 3, 0, head_dim);
}

}  // namespace

AttentionMasks::AttentionMasks(GraphBuilder& build, const std::vector<std::int64_t>& windows) : build_(build), windows_(windows) {
  const OpGraph& graph = build.graph();
  for (std::int64_t& window : windows_) {
    // A window over the whole sequence is no window; stock code sees that only when it is longer than the sequence.
    if (window > graph.seq_len || (window == graph.seq_len && !graph.kernels.mask_per_layer)) window = 0;
    if (window == 0 && !needs_causal_mask(graph.kernels)) continue;
    bool is_made = false;
    for (const OfWindow& made : made_) is_made = is_made || made.window == window;
    if (is_made) continue;
    OfWindow made{window, allowed(window), {}};
    if (!graph.kernels.mask_per_layer) made.additive = additive_from(made.allowed);
    made_.push_back(made);
  }
}

ValueId AttentionMasks::allowed(std::int64_t window) {
  const std::int64_t s = build_.graph().seq_len;
  const ValueId positions = build_.arange(s, DType::I64);
  const ValueId rows = build_.view(positions, Dims{s, 1}), columns = build_.view(positions, Dims{1, s});
  ValueId mask = build_.binary(OpKind::LessEqual, columns, rows);
  if (window > 0) {
    const ValueId first = build_.with_scalar(OpKind::AddScalar, rows, -static_cast<double>(window));
    mask = build_.binary(OpKind::LogicalAnd, mask, build_.binary(OpKind::GreaterThan, columns, first));
  }
  mask = build_.view(mask, Dims{1, 1, s, s});
  // transformers' masks have a plane for every sequence of the batch.
  const Kernels& kernels = build_.graph().kernels;
  return kernels.mask_per_layer || kernels.loss == LossForm::ShiftInLoss
             ? build_.expand(mask, Dims{build_.graph().micro_batch, 1, s, s})
             : mask;
}

ValueId AttentionMasks::additive_from(ValueId allowed) {
  const ValueId zeros = build_.full(build_.sizes(allowed), 0.0, build_.graph().compute);
  const ValueId mask = build_.masked_fill_in_place(zeros, build_.unary(OpKind::LogicalNot, allowed), forbidden(build_.graph()));
  const AttentionKernel kernel = build_.graph().kernels.attention;
  if (kernel != AttentionKernel::CudaEfficient && kernel != AttentionKernel::CudaFlash) return mask;
  // The efficient kernel, which serves masks on CUDA, reads rows that start at multiples of 16 elements.
  const std::int64_t s = build_.graph().seq_len, pad = round_up(s, 16) - s;
  return pad == 0 ? mask : build_.slice(build_.pad_last(mask, 0, pad, 0.0), 3, 0, s);
}

LayerMask AttentionMasks::of_layer(std::size_t layer) {
  const Kernels& kernels = build_.graph().kernels;
  for (const OfWindow& made : made_) {
    if (made.window != windows_[layer]) continue;
    return {.additive = made.additive.is_set() ? made.additive : additive_from(made.allowed),
            .is_kernels_own = made.window == 0 && !kernels.padding_mask && kernels.attention == AttentionKernel::Math};
  }
  return {};
}

ValueId attend(GraphBuilder& build, ValueId q, ValueId k, ValueId v, const LayerMask& layer_mask) {
  const Dims s = build.sizes(q);
  const std::int64_t batch = s[0], heads = s[1], tokens = s[2], head_dim = s[3], times = heads / build.sizes(k)[1];
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const Kernels& kernels = build.graph().kernels;
  ValueId mask = layer_mask.additive;
  // The model code passes a mask with equal numbers of heads only.
  const bool passes_mask = mask.is_set() && !layer_mask.is_kernels_own;
  if (!kernels.grouped_attention || passes_mask) {
    k = repeat_heads(build, k, times);
    v = repeat_heads(build, v, times);
  }
  ValueId out;
  switch (kernels.attention) {
    case AttentionKernel::CpuFlash:
      out = build.attention(OpKind::AttentionCpu, q, k, v, mask, scale, !mask.is_set());
      break;
    case AttentionKernel::CudaFlash:
    case AttentionKernel::CudaEfficient:
      // Flash takes no mask: a layer that has one is served by the efficient kernel.
      if (kernels.attention == AttentionKernel::CudaFlash && !mask.is_set()) {
        out = flash(build, q, k, v, scale);
        break;
      }
      if (mask.is_set()) mask = build.expand(mask, Dims{batch, heads, tokens, tokens});
      out = build.attention(OpKind::AttentionEfficient, q, k, v, mask, scale, !mask.is_set());
      break;
    case AttentionKernel::Math:
      out = math(build, q, k, v, mask, scale, heads / build.sizes(k)[1]);
      break;
    case AttentionKernel::Eager:
      out = eager(build, q, k, v, mask, scale);
      break;
  }
  return build.reshape(build.contiguous(build.transpose(out, 1, 2)), Dims{batch, tokens, heads * head_dim});
}

}  // namespace shardplan
