#include "executor/delayed_init.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "core/error.h"
#include "executor/unit_rows.h"

namespace shardplan {
namespace {

// NaNs that no computation yields: what a stretch holds before its rows arrive.
constexpr std::uint32_t kUnset32 = 0x7fe5a5a5;
constexpr std::uint16_t kUnset16 = 0x7fe5;  // a NaN as bf16 and as fp16

template <class Word>
void mark(const at::Tensor& stretch, Word word) {
  std::fill_n(static_cast<Word*>(stretch.mutable_data_ptr()), stretch.numel(), word);
}
template <class Word>
std::int64_t first_marked(const at::Tensor& stretch, Word word) {
  const auto* begin = static_cast<const Word*>(stretch.const_data_ptr());
  const auto* found = std::find(begin, begin + stretch.numel(), word);
  return found == begin + stretch.numel() ? -1 : found - begin;
}

void mark_unset(const at::Tensor& stretch) {
  if (!stretch.is_cpu()) return;
  stretch.element_size() == 4 ? mark(stretch, kUnset32) : mark(stretch, kUnset16);
}

// Ignored on load, as transformers does: a buffer that old checkpoints hold and that is recomputed.
bool is_recomputed_buffer(const std::string& name) { return name.ends_with("rotary_emb.inv_freq"); }

constexpr const char* kTiedHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

std::vector<std::string> check_stored_model(const StoredModel& stored, const ParameterTable& table) {
  std::vector<std::string> warnings, missing;
  std::map<std::string, const Parameter*> wanted;
  for (const Parameter& p : table.parameters) {
    wanted[p.name] = &p;
    if (stored.find(p.name) == nullptr) missing.push_back(p.name);
  }
  if (!missing.empty()) {
    throw ConfigError(missing.size() == 1 ? fmt::format("checkpoint holds no tensor '{}', which the model needs", missing.front())
                                          : fmt::format("checkpoint lacks {} tensors that the model needs, the first is '{}'",
                                                        missing.size(), missing.front()),
                      stored.directory().string(), "check that weights and config.json belong together");
  }
  for (const auto& [name, tensor] : stored.tensors()) {
    const auto found = wanted.find(name);
    if (found == wanted.end()) {
      if (is_recomputed_buffer(name)) continue;
      if (name == kTiedHead && table.head_is_tied) {
        const StoredTensor& embedding = *stored.find(kEmbedding);
        const std::span<const std::byte> a = stored.bytes(tensor), b = stored.bytes(embedding);
        if (tensor.dtype != embedding.dtype || a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size()) != 0) {
          warnings.push_back(fmt::format("{} differs from {}, to which config.json ties it; the embedding is used",
                                         stored.where(tensor), kEmbedding));
        }
        stored.release(tensor, 0, static_cast<std::int64_t>(a.size()));
        stored.release(embedding, 0, static_cast<std::int64_t>(b.size()));
        continue;
      }
      throw ConfigError("the model has no place for this tensor", stored.where(tensor),
                        "check that weights and config.json belong together");
    }
    const Parameter& parameter = *found->second;
    if (tensor.shape != parameter.shape) {
      throw ConfigError(
          fmt::format("shape is {}, the model needs {}", text_from_shape(tensor.shape), text_from_shape(parameter.shape)),
          stored.where(tensor), "check that weights and config.json belong together");
    }
    if (!tensor.dtype || !is_floating(*tensor.dtype)) {
      throw ConfigError(fmt::format("dtype {} cannot be read as a weight", tensor.dtype_word), stored.where(tensor),
                        "convert the checkpoint to F32, BF16 or F16 (quantised checkpoints: dequantise them first)");
    }
  }
  return warnings;
}

void read_rows(const StoredModel& stored, const ParameterTable& table, const FlatGroup& group, std::int64_t begin, std::int64_t end,
               const at::Tensor& out) {
  CHECK(out.is_cpu() && out.numel() == end - begin, "rows are read into host memory of their size");
  for (const RowRange& rows : rows_in_range(group, begin, end)) {
    const at::Tensor to = out.narrow(0, rows.at, rows.numel);
    if (!rows.parameter.is_set()) {
      std::memset(to.mutable_data_ptr(), 0, to.nbytes());
      continue;
    }
    const StoredTensor& tensor = *stored.find(table.parameters[rows.parameter.at()].name);
    const std::int64_t width = element_bytes(*tensor.dtype);
    const std::span<const std::byte> from = stored.bytes(tensor).subspan(static_cast<std::size_t>(rows.first_element * width),
                                                                         static_cast<std::size_t>(rows.numel * width));
    if (torch_dtype(*tensor.dtype) == to.scalar_type()) {
      std::memcpy(to.mutable_data_ptr(), from.data(), from.size());
    } else {
      // Only read: a write to the mapping would fault.
      to.copy_(at::from_blob(const_cast<std::byte*>(from.data()), {rows.numel}, torch_dtype(*tensor.dtype)));
    }
    stored.release(tensor, rows.first_element * width, (rows.first_element + rows.numel) * width);
  }
}

std::vector<at::Tensor> pieces_as(at::ScalarType dtype, std::span<const at::Tensor> pieces) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& piece : pieces) {
    CHECK(piece.is_cpu(), "pieces pass through host memory");
    const auto numel = static_cast<std::int64_t>(piece.nbytes()) / static_cast<std::int64_t>(c10::elementSize(dtype));
    views.push_back(at::from_blob(piece.mutable_data_ptr(), {numel}, dtype));
  }
  return views;
}

std::span<const at::Tensor> host_pieces(std::vector<at::Tensor>& kept) {
  while (kept.size() < 2) kept.push_back(at::empty({kPieceBytes}, at::kByte));
  return kept;
}

MeshAxis shard_axis_of(const Lowered& lowered) {
  for (const MeshAxis& axis : lowered.phases.front().program.mesh) {
    if (axis.name == "shard") return axis;
  }
  return {.name = "shard", .degree = 1, .stride = 1};
}

ModelLoader::ModelLoader(const Plan& plan, const Lowered& lowered, RankWorld& world, const StoredModel* stored)
    : plan_(plan), lowered_(lowered), world_(world), stored_(stored), shard_axis_(shard_axis_of(lowered)) {
  const bool maps = plan.init == InitPath::Simple || world.rank() == 0;
  CHECK(maps == (stored != nullptr), "on the delayed path rank 0 alone maps the checkpoint");
}

void ModelLoader::load(UnitId unit, std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) {
  const UnitLayout& layout = lowered_.units[unit.at()];
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const FlatGroup& group = layout.groups[g];
    const at::Tensor& stretch = groups[g].sharded_param.flat;
    mark_unset(stretch);
    const std::span<const at::Tensor> through = stretch.is_cpu() ? pieces : host_pieces(host_pieces_);
    if (stored_ != nullptr) load_simple(group, stretch, through);
    if (plan_.init == InitPath::Delayed) {
      if (world_.rank() == 0) {
        for (std::int32_t to = 1; to < world_.size(); ++to) send_stretch(group, to, stretch.scalar_type(), through);
      } else {
        receive_stretch(stretch, through);
      }
    }
    if (!stretch.is_cpu()) continue;
    const std::int64_t unset = stretch.element_size() == 4 ? first_marked(stretch, kUnset32) : first_marked(stretch, kUnset16);
    if (unset >= 0) {
      const std::int64_t at = index_on_axis(shard_axis_, world_.rank()) * group.stretch_numel + unset;
      const RowRange row = rows_in_range(group, at, at + 1).front();
      const std::string name = row.parameter.is_set() ? lowered_.graph->table.parameters[row.parameter.at()].name : "padding";
      throw ConfigError(
          fmt::format("element {} of '{}' was left unset, or holds a NaN with the mark of unset memory", row.first_element, name),
          fmt::format("unit {} on rank {}", layout.name, world_.rank()), "check the checkpoint for NaN");
    }
  }
}

void ModelLoader::load_simple(const FlatGroup& layout, const at::Tensor& stretch, std::span<const at::Tensor> pieces) {
  const std::int64_t begin = index_on_axis(shard_axis_, world_.rank()) * layout.stretch_numel;
  if (stretch.is_cpu()) {
    read_rows(*stored_, lowered_.graph->table, layout, begin, begin + layout.stretch_numel, stretch);
    return;
  }
  const at::Tensor piece = pieces_as(stretch.scalar_type(), pieces).front();
  for (std::int64_t done = 0; done < layout.stretch_numel; done += piece.numel()) {
    const std::int64_t n = std::min(piece.numel(), layout.stretch_numel - done);
    read_rows(*stored_, lowered_.graph->table, layout, begin + done, begin + done + n, piece.narrow(0, 0, n));
    stretch.narrow(0, done, n).copy_(piece.narrow(0, 0, n));
  }
}

void ModelLoader::send_stretch(const FlatGroup& layout, std::int32_t to, at::ScalarType dtype, std::span<const at::Tensor> pieces) {
  const std::vector<at::Tensor> buffers = pieces_as(dtype, pieces);
  const std::int64_t begin = index_on_axis(shard_axis_, to) * layout.stretch_numel;
  std::array<std::unique_ptr<Transfer>, 2> under_way;
  std::size_t turn = 0;
  for (std::int64_t done = 0; done < layout.stretch_numel; done += buffers[0].numel(), turn ^= 1) {
    if (under_way[turn]) under_way[turn]->wait();  // its buffer is about to be filled anew
    const std::int64_t n = std::min(buffers[0].numel(), layout.stretch_numel - done);
    const at::Tensor piece = buffers[turn].narrow(0, 0, n);
    read_rows(*stored_, lowered_.graph->table, layout, begin + done, begin + done + n, piece);
    under_way[turn] = world_.send(piece, to);
  }
  for (const auto& transfer : under_way) {
    if (transfer) transfer->wait();
  }
}

void ModelLoader::receive_stretch(const at::Tensor& stretch, std::span<const at::Tensor> pieces) {
  const std::vector<at::Tensor> buffers = pieces_as(stretch.scalar_type(), pieces);
  const std::int64_t size = buffers[0].numel();
  const auto piece_at = [&](std::int64_t done, std::size_t turn) {
    return buffers[turn].narrow(0, 0, std::min(size, stretch.numel() - done));
  };
  std::array<std::unique_ptr<Transfer>, 2> under_way;
  std::size_t turn = 0;
  if (stretch.numel() > 0) under_way[0] = world_.receive(piece_at(0, 0), 0);
  for (std::int64_t done = 0; done < stretch.numel(); done += size, turn ^= 1) {
    if (done + size < stretch.numel()) under_way[turn ^ 1] = world_.receive(piece_at(done + size, turn ^ 1), 0);
    under_way[turn]->wait();
    const at::Tensor piece = piece_at(done, turn);
    stretch.narrow(0, done, piece.numel()).copy_(piece);
  }
}

}  // namespace shardplan
