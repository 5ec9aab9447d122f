#include "planner/lowering/segment_bodies.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

constexpr std::int32_t kMostDemandBits = 64;

// A storage that is a numbered buffer of the program by itself: not a parameter, a constant or a host number.
bool is_program_storage(const Storage& storage) {
  return storage.bytes > 0 &&
         (storage.role == StorageRole::Activation || storage.role == StorageRole::Gradient || storage.role == StorageRole::Input);
}

bool covers_its_storage(const OpGraph& graph, const Value& value) {
  return value.offset == 0 && is_contiguous(value) &&
         value.sizes.numel() * element_bytes(value.dtype) == graph.storage(value.storage).bytes;
}

std::vector<OpId> ops_between(std::int32_t first, std::int32_t end) {
  std::vector<OpId> ops;
  ops.reserve(static_cast<std::size_t>(end - first));
  for (std::int32_t i = first; i < end; ++i) ops.emplace_back(i);
  return ops;
}

// Cuts a body at the events that the schedule decides.
void cut_into_pieces(SegmentBody& body, const std::vector<Crossing>& crossings, std::int64_t rounding_bytes) {
  BodyPiece piece;
  for (const BodyEvent& event : body.events) {
    const std::int64_t counted = round_up(event.bytes, rounding_bytes);
    switch (event.what) {
      case Happening::Allocate:
        piece.counted_net += counted;
        piece.counted_peak = std::max(piece.counted_peak, piece.counted_net);
        break;
      case Happening::Scratch:
        piece.counted_peak = std::max(piece.counted_peak, piece.counted_net + counted);
        break;
      case Happening::Free:
        piece.counted_net -= counted;
        break;
      case Happening::CrossingAllocate:
      case Happening::CrossingLastRead:
        piece.counted_bytes = crossings[static_cast<std::size_t>(event.index)].counted_bytes;
        [[fallthrough]];
      case Happening::GradientWrite:
        body.decided_outside.push_back(event);
        body.pieces.push_back(piece);
        piece = {};
        break;
    }
  }
  body.pieces.push_back(piece);
}

}  // namespace

KeepSet keep_set(const std::vector<OpKind>& kinds) {
  KeepSet set;
  for (const OpKind kind : kinds) set.set(static_cast<std::size_t>(kind));
  return set;
}

struct SegmentBodies::Compiled {
  struct Recomputed {
    KeepSet keep;
    std::uint64_t demand = 0;
    RecomputedSegment bodies;
  };
  std::optional<SegmentBody> forward, evaluation, backward, backward_adding;
  std::vector<std::unique_ptr<Recomputed>> recomputed;
};

// Marks by storage, value and op; a mark is set when it equals `round`, so that nothing is cleared between bodies.
struct SegmentBodies::Workspace {
  std::int32_t round = 0;
  std::vector<std::int32_t> last_touch_round, last_touch, freed_round;  // by StorageId
  std::vector<std::int32_t> needed_round;                               // by ValueId
  std::vector<std::int32_t> read_later_round;                           // by StorageId
  std::vector<std::int32_t> parameter_round;                            // by ParameterId
};

// Compiles one list of ops into a body. `dies(storage)`: a storage of this segment alone ends after its last touch here.
class SegmentBodies::Compiler {
 public:
  Compiler(SegmentBodies& owner, SegmentId segment, bool adds_to_gradients)
      : owner_(owner), graph_(owner.graph_), work_(*owner.workspace_), adds_to_gradients_(adds_to_gradients) {
    body_.segment = segment;
    ++work_.round;
  }

  template <class Dies>
  SegmentBody compile(const std::vector<OpId>& ops, const Dies& dies) {
    body_.ops.reserve(ops.size());
    for (const OpId op : ops) place(op);
    for (const BodyOp& op : body_.ops)
      if (op.kernel >= 0) emit(op, dies);
    if (loss_made_ && dies(graph_.value(graph_.loss).storage)) {
      const StorageId loss = graph_.value(graph_.loss).storage;
      add(Happening::Free, static_cast<std::int32_t>(body_.kernels.size()) - 1, loss.value, graph_.storage(loss).bytes);
    }
    cut_into_pieces(body_, owner_.crossings_, owner_.options_.rounding_bytes);
    if (owner_.options_.kernel_nanoseconds)
      for (const KernelWork& work : body_.kernels) body_.nanoseconds += owner_.options_.kernel_nanoseconds(work);
    return std::move(body_);
  }

 private:
  // Gives the op its kernel number and notes what it touches.
  void place(OpId id) {
    const Op& op = graph_.op(id);
    BodyOp placed{.op = id};
    if (op.kind == OpKind::AccumulateGrad) {
      body_.contributions.push_back(op.parameter);
      placed.grad_target = op.parameter;
      placed.grad = grad_write(id);
    } else if (const OpId source = owner_.accumulated_by_[id.at()]; source.is_set() && grad_write(source) == GradWrite::InPlace) {
      placed.grad_target = graph_.op(source).parameter;
      placed.grad = GradWrite::InPlace;
    }
    const bool is_nothing = is_view(op.kind) || (op.kind == OpKind::AccumulateGrad && placed.grad == GradWrite::InPlace);
    if (!is_nothing) {
      placed.kernel = static_cast<std::int32_t>(body_.kernels.size());
      body_.kernels.push_back(op.kind == OpKind::AccumulateGrad ? gradient_work(op, placed.grad) : owner_.costs_[id.at()].work);
      for (const ValueId v : op.inputs) touch(v, placed.kernel);
      if (placed.grad != GradWrite::InPlace)
        for (const ValueId v : op.outputs) touch(v, placed.kernel);
    }
    body_.ops.push_back(placed);
  }

  void touch(ValueId v, std::int32_t kernel) {
    if (!v.is_set()) return;
    const StorageId id = graph_.value(v).storage;
    const Storage& storage = graph_.storage(id);
    if (storage.role == StorageRole::Parameter) {
      std::int32_t& seen = work_.parameter_round[storage.parameter.at()];
      if (seen != work_.round) body_.reads.push_back(storage.parameter);
      seen = work_.round;
      return;
    }
    work_.last_touch_round[id.at()] = work_.round;
    work_.last_touch[id.at()] = kernel;
  }

  [[nodiscard]] GradWrite grad_write(OpId accumulate) const {
    const GradientSource& source = owner_.gradient_sources_[accumulate.at()];
    if (adds_to_gradients_ || !source.is_first) return GradWrite::Add;
    return source.written_by.is_set() ? GradWrite::InPlace : GradWrite::Copy;
  }

  [[nodiscard]] KernelWork gradient_work(const Op& op, GradWrite write) const {
    const Value& g = graph_.value(op.inputs[0]);
    const std::int64_t numel = g.sizes.numel();
    const std::int64_t slice_bytes = numel * element_bytes(owner_.options_.reduce);
    return {.compute = write == GradWrite::Copy ? ComputeClass::Copy : ComputeClass::Elementwise,
            .dtype = owner_.options_.reduce,
            .flops = write == GradWrite::Copy ? 0 : numel,
            .read_bytes = numel * element_bytes(g.dtype) + (write == GradWrite::Add ? slice_bytes : 0),
            .written_bytes = slice_bytes};
  }

  // On CPU an addition of two dtypes casts the contribution first.
  [[nodiscard]] std::int64_t scratch_bytes(const BodyOp& placed) const {
    const Op& op = graph_.op(placed.op);
    if (op.kind != OpKind::AccumulateGrad) return owner_.costs_[placed.op.at()].scratch_bytes;
    const Value& g = graph_.value(op.inputs[0]);
    const DType reduce = owner_.options_.reduce;
    if (placed.grad != GradWrite::Add || g.dtype == reduce || graph_.kernels.device != DeviceKind::Cpu) return 0;
    // The CPU kernel adds in fp32: it casts what comes, and where the sum is narrower, reads it and writes it through copies of its
    // own.
    const std::int64_t copies = (g.dtype == DType::F32 ? 0 : 1) + (reduce == DType::F32 ? 0 : 2);
    return g.sizes.numel() * copies * element_bytes(DType::F32);
  }

  template <class Dies>
  void emit(const BodyOp& placed, const Dies& dies) {
    const Op& op = graph_.op(placed.op);
    if (placed.grad != GradWrite::None && placed.grad != GradWrite::Add)
      add(Happening::GradientWrite, placed.kernel, placed.grad_target.value, 0);
    if (placed.grad != GradWrite::InPlace) {
      for (const ValueId v : op.outputs) {
        const StorageId s = graph_.value(v).storage;
        if (graph_.storage(s).made_by != placed.op || !is_program_storage(graph_.storage(s))) continue;
        const std::int32_t crossing = owner_.crossing_of_[s.at()];
        if (crossing >= 0)
          add(Happening::CrossingAllocate, placed.kernel, crossing, graph_.storage(s).bytes);
        else
          add(Happening::Allocate, placed.kernel, s.value, graph_.storage(s).bytes);
      }
    }
    if (const std::int64_t scratch = scratch_bytes(placed); scratch > 0) add(Happening::Scratch, placed.kernel, -1, scratch);
    for (const ValueId v : op.inputs) end_if_last(v, placed.kernel, dies);
    if (placed.grad != GradWrite::InPlace)
      for (const ValueId v : op.outputs) end_if_last(v, placed.kernel, dies);
  }

  template <class Dies>
  void end_if_last(ValueId v, std::int32_t kernel, const Dies& dies) {
    if (!v.is_set()) return;
    const StorageId s = graph_.value(v).storage;
    const Storage& storage = graph_.storage(s);
    if (!is_program_storage(storage) || work_.last_touch[s.at()] != kernel || work_.freed_round[s.at()] == work_.round) return;
    if (s == graph_.value(graph_.loss).storage && body_made(storage)) {  // read by the host when the task has ended
      loss_made_ = true;
      return;
    }
    const std::int32_t crossing = owner_.crossing_of_[s.at()];
    if (crossing < 0 && !dies(s)) return;
    work_.freed_round[s.at()] = work_.round;
    if (crossing >= 0)
      add(Happening::CrossingLastRead, kernel, crossing, storage.bytes);
    else
      add(Happening::Free, kernel, s.value, storage.bytes);
  }

  [[nodiscard]] bool body_made(const Storage& storage) const { return graph_.op(storage.made_by).segment == body_.segment; }

  void add(Happening what, std::int32_t kernel, std::int32_t index, std::int64_t bytes) {
    body_.events.push_back({.what = what, .kernel = kernel, .index = index, .bytes = bytes});
  }

  SegmentBodies& owner_;
  const OpGraph& graph_;
  Workspace& work_;
  bool adds_to_gradients_;
  bool loss_made_ = false;
  SegmentBody body_;
};

SegmentBodies::SegmentBodies(const OpGraph& graph, const Segments& segments, BodyOptions options)
    : graph_(graph), segments_(segments), options_(std::move(options)), workspace_(std::make_unique<Workspace>()) {
  costs_.reserve(graph.ops.size());
  producer_.resize(graph.values.size());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const OpId id(static_cast<std::int64_t>(i));
    const Op& op = graph.ops[i];
    costs_.push_back(is_view(op.kind) || op.kind == OpKind::AccumulateGrad ? OpCost{} : op_cost(graph, id));
    for (const ValueId v : op.outputs) producer_[v.at()] = id;
  }
  find_crossings();
  find_gradient_writes();
  compiled_.resize(segments.all.size());
  for (auto& compiled : compiled_) compiled = std::make_unique<Compiled>();
  Workspace& w = *workspace_;
  w.last_touch_round.resize(graph.storages.size());
  w.last_touch.resize(graph.storages.size());
  w.freed_round.resize(graph.storages.size());
  w.read_later_round.resize(graph.storages.size());
  w.needed_round.resize(graph.values.size());
  w.parameter_round.resize(graph.table.parameters.size());
}

SegmentBodies::~SegmentBodies() = default;

bool SegmentBodies::runs_backward(SegmentId segment) const {
  const Segment& s = segments_.all[segment.at()];
  return s.end_backward > s.first_backward;
}

void SegmentBodies::find_crossings() {
  crossing_of_.assign(graph_.storages.size(), -1);
  read_in_backward_.assign(graph_.storages.size(), false);
  demand_bit_.assign(graph_.values.size(), -1);
  std::vector<std::int32_t> num_bits(segments_.all.size(), 0);
  std::vector<bool> crosses(graph_.storages.size(), false);
  for (std::size_t i = 0; i < graph_.storages.size(); ++i) crosses[i] = graph_.storages[i].role == StorageRole::Input;
  for (const Op& op : graph_.ops) {
    for (const ValueId v : op.inputs) {
      if (!v.is_set()) continue;
      const StorageId s = graph_.value(v).storage;
      if (op.pass == OpPass::Backward && !is_view(op.kind)) read_in_backward_[s.at()] = true;
      const OpId maker = graph_.storage(s).made_by;
      if (maker.is_set() && graph_.op(maker).segment != op.segment && !is_view(op.kind)) crosses[s.at()] = true;
      const OpId producer = producer_[v.at()];
      if (!producer.is_set() || graph_.op(producer).pass == OpPass::Backward) continue;
      if (const SegmentId from = graph_.op(producer).segment; from != op.segment && demand_bit_[v.at()] < 0)
        demand_bit_[v.at()] = num_bits[from.at()]++;
    }
  }
  for (std::size_t i = 0; i < graph_.storages.size(); ++i) {
    const Storage& storage = graph_.storages[i];
    if (!crosses[i] || !is_program_storage(storage)) continue;
    crossing_of_[i] = static_cast<std::int32_t>(crossings_.size());
    Crossing crossing{.storage = StorageId(static_cast<std::int64_t>(i)),
                      .bytes = storage.bytes,
                      .counted_bytes = round_up(storage.bytes, options_.rounding_bytes)};
    if (storage.made_by.is_set()) {
      const Op& maker = graph_.op(storage.made_by);
      crossing.made_in = maker.segment;
      crossing.made_by_pass = maker.pass;
      crossing.made_by = maker.kind;
    }
    crossings_.push_back(crossing);
  }
}

void SegmentBodies::find_gradient_writes() {
  gradient_sources_.resize(graph_.ops.size());
  accumulated_by_.resize(graph_.ops.size());
  std::vector<bool> written(graph_.table.parameters.size(), false);
  std::vector<std::int32_t> num_reads(graph_.storages.size(), 0);
  for (const Op& op : graph_.ops) {
    if (is_view(op.kind)) continue;
    for (const ValueId v : op.inputs)
      if (v.is_set()) ++num_reads[graph_.value(v).storage.at()];
  }
  for (std::size_t i = static_cast<std::size_t>(graph_.num_forward_ops); i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    if (op.kind != OpKind::AccumulateGrad) continue;
    GradientSource& source = gradient_sources_[i];
    source.is_first = !written[op.parameter.at()];
    written[op.parameter.at()] = true;
    const Value& g = graph_.value(op.inputs[0]);
    const OpId maker = graph_.storage(g.storage).made_by;
    if (!maker.is_set()) continue;
    const Op& made_by = graph_.op(maker);
    const bool can_write = made_by.kind == OpKind::Mm || made_by.kind == OpKind::SumLeading;
    if (!can_write || made_by.segment != op.segment || made_by.pass != OpPass::Backward) continue;
    if (g.dtype != options_.reduce || num_reads[g.storage.at()] != 1 || !covers_its_storage(graph_, g)) continue;
    if (!covers_its_storage(graph_, graph_.value(made_by.outputs[0]))) continue;
    source.written_by = maker;
    accumulated_by_[maker.at()] = OpId(static_cast<std::int64_t>(i));
  }
}

const SegmentBody& SegmentBodies::forward(SegmentId segment) {
  std::optional<SegmentBody>& body = compiled_[segment.at()]->forward;
  const Segment& s = segments_.all[segment.at()];
  if (!body)
    body = Compiler(*this, segment, false).compile(ops_between(s.first_forward, s.end_forward), [&](StorageId id) {
      return !read_in_backward_[id.at()];
    });
  return *body;
}

const SegmentBody& SegmentBodies::evaluation(SegmentId segment) {
  std::optional<SegmentBody>& body = compiled_[segment.at()]->evaluation;
  const Segment& s = segments_.all[segment.at()];
  if (!body)
    body = Compiler(*this, segment, false).compile(ops_between(s.first_forward, s.end_forward), [](StorageId) { return true; });
  return *body;
}

const SegmentBody& SegmentBodies::backward(SegmentId segment) {
  std::optional<SegmentBody>& body = compiled_[segment.at()]->backward;
  const Segment& s = segments_.all[segment.at()];
  if (!body)
    body = Compiler(*this, segment, false).compile(ops_between(s.first_backward, s.end_backward), [](StorageId) { return true; });
  return *body;
}

const SegmentBody& SegmentBodies::backward_adding(SegmentId segment) {
  std::optional<SegmentBody>& body = compiled_[segment.at()]->backward_adding;
  const Segment& s = segments_.all[segment.at()];
  if (!body)
    body = Compiler(*this, segment, true).compile(ops_between(s.first_backward, s.end_backward), [](StorageId) { return true; });
  return *body;
}

// See [Note: what a span runs again].
const RecomputedSegment& SegmentBodies::recomputed(SegmentId segment, const KeepSet& keep, std::uint64_t demand) {
  auto& known = compiled_[segment.at()]->recomputed;
  for (const auto& entry : known)
    if (entry->demand == demand && entry->keep == keep) return entry->bodies;
  auto entry = std::make_unique<Compiled::Recomputed>();
  entry->keep = keep;
  entry->demand = demand;
  RecomputedSegment& result = entry->bodies;

  Workspace& w = *workspace_;
  const std::int32_t round = ++w.round;
  const Segment& s = segments_.all[segment.at()];
  const auto kept = [&](StorageId id) {
    const OpId maker = graph_.storage(id).made_by;
    return maker.is_set() && keep.test(static_cast<std::size_t>(graph_.op(maker).kind));
  };
  std::vector<ValueId> asked_for;  // values of earlier segments
  const auto need = [&](ValueId v) {
    if (!v.is_set() || w.needed_round[v.at()] == round) return;
    w.needed_round[v.at()] = round;
    const OpId producer = producer_[v.at()];
    if (!producer.is_set() || graph_.op(producer).pass == OpPass::Backward) return;
    if (const SegmentId from = graph_.op(producer).segment; from != segment) asked_for.push_back(v);
  };
  const auto reads_later = [&](const Op& op) {
    if (is_view(op.kind)) return;
    for (const ValueId v : op.inputs)
      if (v.is_set()) w.read_later_round[graph_.value(v).storage.at()] = round;
  };

  for (std::int32_t i = s.first_backward; i < s.end_backward; ++i) {
    const Op& op = graph_.ops[static_cast<std::size_t>(i)];
    for (const ValueId v : op.inputs) need(v);
    reads_later(op);
  }
  std::vector<OpId> again;
  for (std::int32_t i = s.end_forward - 1; i >= s.first_forward; --i) {
    const Op& op = graph_.ops[static_cast<std::size_t>(i)];
    bool is_needed = false;
    for (const ValueId v : op.outputs) {
      const std::int32_t bit = demand_bit_[v.at()];
      const bool demanded = bit >= 0 && bit < kMostDemandBits && ((demand >> bit) & 1u) != 0;
      if ((demanded || w.needed_round[v.at()] == round) && (is_view(op.kind) || !kept(graph_.value(v).storage))) is_needed = true;
    }
    if (!is_needed) continue;
    again.emplace_back(i);
    for (const ValueId v : op.inputs) need(v);
    reads_later(op);
  }
  std::reverse(again.begin(), again.end());
  for (const ValueId v : asked_for) {
    const std::int32_t bit = demand_bit_[v.at()];
    const SegmentId from = graph_.op(producer_[v.at()]).segment;
    // The first segment is never recomputed: its results may be more than there are bits.
    if (from.value == 0) continue;
    CHECK(bit < kMostDemandBits, "a recomputed segment hands at most 64 values to others: " + segments_.all[from.at()].name);
    result.demands.push_back({.segment = from, .bit = bit});
  }
  std::vector<StorageId> surviving;
  for (std::int32_t i = s.first_forward; i < s.end_forward; ++i)
    for (const ValueId v : graph_.ops[static_cast<std::size_t>(i)].outputs) {
      const StorageId id = graph_.value(v).storage;
      if (kept(id) && w.read_later_round[id.at()] == round) surviving.push_back(id);
    }
  std::sort(surviving.begin(), surviving.end());

  result.forward = Compiler(*this, segment, false).compile(ops_between(s.first_forward, s.end_forward), [&](StorageId id) {
    return !std::binary_search(surviving.begin(), surviving.end(), id);
  });
  result.recompute = Compiler(*this, segment, false).compile(again, [&](StorageId id) { return !read_in_backward_[id.at()]; });
  known.push_back(std::move(entry));
  return known.back()->bodies;
}

// [Note: what a span runs again] Values are needed when a backward op of the segment reads them, or when a later segment of the
// span does
// (`demand`). An op runs again when one of its results is needed and was not kept; its operands are then needed too. Views run
// again whenever they are needed: they cost nothing, and they may lie on a storage that is made again. What an op reads from
// outside the span is still there from forward, because the schedule sees that it is read.

}  // namespace shardplan
