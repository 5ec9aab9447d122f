// Writes final/: the trained model in the layout of Hugging Face, whole or not at all.
//
// Stretches travel to rank 0 piece by piece through two buffers; rank 0 writes every row into its place of the file, so that nobody
// holds more than its shards and two pieces. config.json stays as it was but for the dtype; tokenizer and generation files are
// copied. Everything is written to final.tmp/ beside it; finish() flushes and swaps the directories. A saver that is destroyed
// before leaves final/ as it was.
//
// Errors: IoError naming the file and the reason (disk full, no permission).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/process_groups.h"
#include "executor/run_program.h"
#include "executor/safetensors_writer.h"

namespace shardplan {

struct SaveRequest {
  std::filesystem::path directory;        // final/
  std::filesystem::path model_directory;  // where tokenizer files come from
  std::int64_t max_file_bytes = kMaxFileBytes;
};

class ModelSaver {
 public:
  // Rank 0 creates final.tmp/ and reserves room for the files. All references outlive the saver.
  ModelSaver(const Plan& plan, const Lowered& lowered, RankWorld& world, const SaveRequest& request);
  ~ModelSaver();
  ModelSaver(const ModelSaver&) = delete;
  ModelSaver& operator=(const ModelSaver&) = delete;

  void save(UnitId unit, const std::vector<GroupState>& groups, std::span<const at::Tensor> pieces);
  void finish();  // after all units; every rank returns once final/ is in place

 private:
  void write_stretch(const FlatGroup& layout, std::int32_t shard_index, std::int64_t done, const at::Tensor& piece);
  void send_stretch(const at::Tensor& stretch, std::span<const at::Tensor> buffers);
  void collect_stretch(const FlatGroup& layout, std::int32_t from, const at::Tensor& own, std::span<const at::Tensor> buffers);

  const Plan& plan_;
  const Lowered& lowered_;
  RankWorld& world_;
  SaveRequest request_;
  MeshAxis shard_axis_;
  std::filesystem::path temporary_;
  std::unique_ptr<ModelWriter> writer_;  // rank 0
  std::vector<at::Tensor> host_pieces_;
};

// Puts `complete` at the name of `target`, which may exist: one rename, or an exchange of the two followed by removal of the old
// one.
void replace_directory(const std::filesystem::path& complete, const std::filesystem::path& target);

}  // namespace shardplan
