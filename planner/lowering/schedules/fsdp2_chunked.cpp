// Head and loss piece by piece, each piece under a non-reentrant checkpoint, as training code does that must not hold all logits:
//
//   labels = pad(labels)[1:];  for h, y in pieces: total += checkpoint(cross_entropy_sum(head(h).float(), y));  loss = total /
//   tokens
//
// A piece keeps its hidden states and labels, which are views; backward takes the pieces in reverse order and runs each again. The
// head's gradient is added piece by piece out of place, gradients of the hidden states wait for each other and are joined.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/lowering/schedules/fsdp2_step.h"

namespace shardplan {
namespace {

constexpr std::int64_t kScalarBytes = 4;  // fp32
constexpr std::int64_t kLabelBytes = 8;   // int64

KernelWork elementwise(std::int64_t read_bytes, std::int64_t written_bytes) {
  return {.compute = ComputeClass::Elementwise,
          .dtype = DType::F32,
          .flops = written_bytes / 4,
          .read_bytes = read_bytes,
          .written_bytes = written_bytes};
}

}  // namespace

std::vector<std::int64_t> Fsdp2Step::piece_tokens() const {
  std::vector<std::int64_t> pieces;
  for (std::int64_t left = graph_.micro_batch * graph_.seq_len; left > 0; left -= switches_.chunk_tokens)
    pieces.push_back(std::min(left, switches_.chunk_tokens));
  return pieces;
}

// Logits, their fp32 copy, log-probabilities and the sum of a piece. What is left: log-probabilities, total weight, loss and the
// copy.
Fsdp2Step::Piece Fsdp2Step::run_piece(std::int64_t tokens) {
  const Op& head = graph_.op(forward_.order[static_cast<std::size_t>(forward_.head.first)]);
  const std::int64_t vocabulary = graph_.value(graph_.logits).sizes[-1], hidden = graph_.value(head.inputs[0]).sizes[-1];
  const std::int64_t narrow = tokens * vocabulary * element_bytes(graph_.compute),
                     wide = tokens * vocabulary * element_bytes(DType::F32);
  Piece piece;
  piece.copy = temporary(narrow, "logits of a piece");
  builder_.kernel({.compute = ComputeClass::Matmul,
                   .dtype = graph_.compute,
                   .flops = 2 * tokens * vocabulary * hidden,
                   .read_bytes = narrow,
                   .written_bytes = narrow});
  if (graph_.compute != DType::F32) {
    const BufferId copy = temporary(wide, "fp32 logits of a piece");
    builder_.kernel(elementwise(narrow, wide));
    builder_.release(std::exchange(piece.copy, copy));
  }
  piece.log_probabilities = temporary(wide, "log-probabilities of a piece");
  builder_.kernel(elementwise(wide, wide));
  piece.loss = temporary(kScalarBytes, "loss of a piece");
  piece.total_weight = temporary(kScalarBytes, "weight of a piece");
  builder_.kernel(elementwise(wide, kScalarBytes));
  return piece;
}

void Fsdp2Step::chunked_forward() {
  const std::int64_t labels = graph_.micro_batch * graph_.seq_len * kLabelBytes;
  enter(TaskKind::Forward, graph_.op(forward_.order.back()).segment);
  const BufferId padded = temporary(labels + graph_.micro_batch * kLabelBytes, "padded labels");
  builder_.kernel(elementwise(labels, labels));
  piece_labels_ = temporary(labels, "shifted labels");
  builder_.kernel(elementwise(labels, labels));
  builder_.release(padded);
  BufferId total;
  for (const std::int64_t tokens : piece_tokens()) {
    const Piece piece = run_piece(tokens);
    for (const BufferId done : {piece.copy, piece.log_probabilities, piece.total_weight}) builder_.release(done);
    const BufferId sum = temporary(kScalarBytes, "sum of the pieces");
    builder_.kernel(elementwise(2 * kScalarBytes, kScalarBytes));
    if (total.is_set()) builder_.release(total);
    builder_.release(piece.loss);
    total = sum;
  }
  const StorageId loss = graph_.value(graph_.loss).storage;
  alive_[Made][loss.at()] = temporary(kScalarBytes, "loss");
  builder_.kernel(elementwise(kScalarBytes, kScalarBytes));
  builder_.release(total);
}

// The gradient of the head's input, and the parameter the head reads.
void Fsdp2Step::chunked_backward() {
  const Op& head = graph_.op(forward_.order[static_cast<std::size_t>(forward_.head.first)]);
  const BackwardStep* linear = nullptr;
  for (const BackwardStep& step : backward_.steps)
    if (step.position == forward_.head.first && graph_.op(step.ops.front()).kind != OpKind::Add) linear = &step;
  CHECK(linear != nullptr, "a gradient flows through the head");
  StorageId input_gradient;
  for (const OpId id : linear->ops) {
    if (graph_.op(id).kind != OpKind::Mm) continue;
    const StorageId made = graph_.value(graph_.op(id).outputs[0]).storage;
    if (std::find(linear->gradients.begin(), linear->gradients.end(), made) == linear->gradients.end()) input_gradient = made;
  }
  const bool trains_head = !linear->hands_over.empty();
  const std::int64_t vocabulary = graph_.value(graph_.logits).sizes[-1], hidden = graph_.value(head.inputs[0]).sizes[-1];
  const std::int64_t compute = element_bytes(graph_.compute), weight_bytes = vocabulary * hidden * compute;

  enter(TaskKind::Backward, graph_.op(forward_.order.back()).segment);
  BufferId scaled = temporary(kScalarBytes, "gradient of the sum", MemoryCategory::Temp);
  builder_.kernel(elementwise(kScalarBytes, kScalarBytes));
  std::vector<BufferId> inputs;  // gradients of the pieces' hidden states
  BufferId weight;
  const std::vector<std::int64_t> pieces = piece_tokens();
  for (std::size_t i = pieces.size(); i-- > 0;) {
    const std::int64_t wide = pieces[i] * vocabulary * element_bytes(DType::F32), narrow = pieces[i] * vocabulary * compute;
    const Piece piece = run_piece(pieces[i]);
    builder_.release(piece.copy);
    builder_.release(piece.loss);
    const auto make_gradient = [&](std::int64_t bytes, std::int64_t read_bytes) {
      const BufferId made = temporary(bytes, "gradient of a piece", MemoryCategory::Temp);
      builder_.kernel(elementwise(read_bytes, bytes));
      return made;
    };
    const BufferId of_log = make_gradient(wide, wide);
    builder_.release(piece.total_weight);
    if (i == 0) builder_.release(scaled);
    BufferId of_logits = make_gradient(wide, 2 * wide);
    builder_.release(of_log);
    builder_.release(piece.log_probabilities);
    if (graph_.compute != DType::F32) {
      const BufferId cast = make_gradient(narrow, wide);
      builder_.release(std::exchange(of_logits, cast));
    }
    BufferId of_weight;
    const KernelWork product{.compute = ComputeClass::Matmul,
                             .dtype = graph_.compute,
                             .flops = 2 * pieces[i] * vocabulary * hidden,
                             .read_bytes = narrow + weight_bytes,
                             .written_bytes = weight_bytes};
    if (trains_head) {
      of_weight = temporary(weight_bytes, "gradient of the head", MemoryCategory::Temp);
      builder_.kernel(product);
    }
    if (input_gradient.is_set()) {
      inputs.push_back(temporary(pieces[i] * hidden * compute, "gradient of hidden states", MemoryCategory::Temp));
      builder_.kernel(product);
    }
    builder_.release(of_logits);
    if (i == 0) {
      builder_.release(std::exchange(piece_labels_, {}));
      drop(graph_.value(head.inputs[0]).storage, Made);
    }
    if (weight.is_set() && switches_.adds_in_place) {
      builder_.kernel(elementwise(2 * weight_bytes, weight_bytes));
      builder_.release(std::exchange(of_weight, weight));
    } else if (weight.is_set()) {
      const BufferId sum = temporary(weight_bytes, "gradient of the head", MemoryCategory::Temp);
      builder_.kernel(elementwise(2 * weight_bytes, weight_bytes));
      builder_.release(weight);
      builder_.release(of_weight);
      of_weight = sum;
    }
    weight = of_weight;
  }
  if (trains_head) {
    alive_[Made][linear->gradients.front().at()] = weight;
    sum_of_uses(linear->hands_over.front(), linear->gradients.front());
  }
  if (!input_gradient.is_set()) return;
  make(input_gradient, Made);
  builder_.kernel({.compute = ComputeClass::Copy, .dtype = graph_.compute});
  for (const BufferId input : inputs) builder_.release(input);
}

}  // namespace shardplan
