// Brings a checkpoint's weights into the ranks' stretches.
//
// Simple path: every rank maps the files and reads its own rows. Delayed path: rank 0 alone maps them; the other ranks hold nothing
// until their stretch arrives piece by piece through two buffers of at most 4 MiB, so that anonymous host memory above a rank's own
// shards stays O(piece). Pages that were read are released at once. Weights are cast to the stored dtype on the way. Proof that
// nothing is left unset: a stretch starts as a marked NaN, the ranges written must tile it, and no mark may be left.
//
// Errors: ConfigError naming file and tensor for missing tensors, wrong shapes, dtypes that are no weights, tensors without a place
// in the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/process_groups.h"
#include "executor/run_program.h"
#include "executor/safetensors.h"

namespace shardplan {

// Every parameter is there with its shape and a floating dtype, and nothing else is but what may be ignored: rotary_emb.inv_freq, a
// tied head (compared with the embedding). Returns warnings.
[[nodiscard]] std::vector<std::string> check_stored_model(const StoredModel& stored, const ParameterTable& table);

// Copies [begin, end) of a group's flat buffer into `out` (one-dimensional, on the host), cast to its dtype; padding becomes zero.
void read_rows(const StoredModel& stored, const ParameterTable& table, const FlatGroup& group, std::int64_t begin, std::int64_t end,
               const at::Tensor& out);

class ModelLoader {
 public:
  // `stored` is null on ranks that do not map the files. All references outlive the loader.
  ModelLoader(const Plan& plan, const Lowered& lowered, RankWorld& world, const StoredModel* stored);
  void load(UnitId unit, std::vector<GroupState>& groups, std::span<const at::Tensor> pieces);

 private:
  void load_simple(const FlatGroup& layout, const at::Tensor& stretch, std::span<const at::Tensor> pieces);
  void send_stretch(const FlatGroup& layout, std::int32_t to, at::ScalarType dtype, std::span<const at::Tensor> pieces);
  void receive_stretch(const at::Tensor& stretch, std::span<const at::Tensor> pieces);

  const Plan& plan_;
  const Lowered& lowered_;
  RankWorld& world_;
  const StoredModel* stored_;
  MeshAxis shard_axis_;
  std::vector<at::Tensor> host_pieces_;  // made only where stretches are not in host memory
};

inline constexpr std::int64_t kPieceBytes = 4 << 20;

// The two buffers through which pieces pass, seen as elements of `dtype`: the program's own on CPU, host memory of the same size
// otherwise.
[[nodiscard]] std::vector<at::Tensor> pieces_as(at::ScalarType dtype, std::span<const at::Tensor> pieces);

// Two buffers in host memory, for devices whose pieces cannot pass through the host; made once, kept in `kept`.
[[nodiscard]] std::span<const at::Tensor> host_pieces(std::vector<at::Tensor>& kept);

// The axis on which stretches are cut, with degree 1 where the mesh has none.
[[nodiscard]] MeshAxis shard_axis_of(const Lowered& lowered);

}  // namespace shardplan
