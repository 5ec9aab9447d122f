#include "executor/checkpoint.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/write_file.h"
#include "executor/config_dtype.h"
#include "executor/delayed_init.h"
#include "executor/unit_rows.h"

namespace shardplan {
namespace {

constexpr std::array kCopiedFiles = {"generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "tokenizer.model",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.jinja"};

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& where, int reason) {
  throw IoError(fmt::format("{}: {}", what, std::strerror(reason)), where.string(), "name another --out");
}

}  // namespace

void replace_directory(const std::filesystem::path& complete, const std::filesystem::path& target) {
  if (!std::filesystem::exists(target)) {
    if (::rename(complete.c_str(), target.c_str()) != 0) refuse("cannot rename directory", target, errno);
    return;
  }
  if (::syscall(SYS_renameat2, AT_FDCWD, complete.c_str(), AT_FDCWD, target.c_str(), 2 /* RENAME_EXCHANGE */) != 0) {
    refuse("cannot exchange directories", target, errno);
  }
  std::filesystem::remove_all(complete);
}

ModelSaver::ModelSaver(const Plan& plan, const Lowered& lowered, RankWorld& world, const SaveRequest& request)
    : plan_(plan),
      lowered_(lowered),
      world_(world),
      request_(request),
      shard_axis_(shard_axis_of(lowered)),
      temporary_(request.directory.string() + ".tmp") {
  if (world.rank() != 0) return;
  std::error_code error;
  std::filesystem::remove_all(temporary_, error);
  std::filesystem::create_directories(temporary_, error);
  if (error) refuse("cannot create directory", temporary_, error.value());
  std::vector<TensorDeclaration> tensors;
  for (const Parameter& p : lowered.graph->table.parameters)
    tensors.push_back({.name = p.name, .dtype = plan.workload.precision.stored, .shape = p.shape});
  try {
    writer_ = std::make_unique<ModelWriter>(temporary_, tensors, request.max_file_bytes);
  } catch (...) {
    std::filesystem::remove_all(temporary_, error);
    throw;
  }
}

ModelSaver::~ModelSaver() {
  if (!writer_) return;
  writer_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

void ModelSaver::save(UnitId unit, const std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) {
  const UnitLayout& layout = lowered_.units[unit.at()];
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const at::Tensor& stretch = groups[g].sharded_param.flat;
    const std::span<const at::Tensor> through = stretch.is_cpu() ? pieces : host_pieces(host_pieces_);
    const std::vector<at::Tensor> buffers = pieces_as(stretch.scalar_type(), through);
    // One replica is enough: ranks whose other indices are all zero.
    if (world_.rank() == 0) {
      for (const std::int32_t from : ranks_on_axis(shard_axis_, 0)) collect_stretch(layout.groups[g], from, stretch, buffers);
    } else if (world_.rank() == index_on_axis(shard_axis_, world_.rank()) * shard_axis_.stride) {
      send_stretch(stretch, buffers);
    }
  }
}

void ModelSaver::send_stretch(const at::Tensor& stretch, std::span<const at::Tensor> buffers) {
  std::array<std::unique_ptr<Transfer>, 2> under_way;
  std::size_t turn = 0;
  for (std::int64_t done = 0; done < stretch.numel(); done += buffers[0].numel(), turn ^= 1) {
    if (under_way[turn]) under_way[turn]->wait();
    const std::int64_t n = std::min(buffers[0].numel(), stretch.numel() - done);
    const at::Tensor piece = buffers[turn].narrow(0, 0, n);
    piece.copy_(stretch.narrow(0, done, n));
    under_way[turn] = world_.send(piece, 0);
  }
  for (const auto& transfer : under_way) {
    if (transfer) transfer->wait();
  }
}

void ModelSaver::collect_stretch(const FlatGroup& layout, std::int32_t from, const at::Tensor& own,
                                 std::span<const at::Tensor> buffers) {
  const std::int64_t size = buffers[0].numel(), total = layout.stretch_numel;
  const auto piece_at = [&](std::int64_t done, std::size_t turn) {
    return buffers[turn].narrow(0, 0, std::min(size, total - done));
  };
  std::array<std::unique_ptr<Transfer>, 2> under_way;
  std::size_t turn = 0;
  if (from != 0 && total > 0) under_way[0] = world_.receive(piece_at(0, 0), from);
  for (std::int64_t done = 0; done < total; done += size, turn ^= 1) {
    const at::Tensor piece = piece_at(done, turn);
    if (from == 0) {
      piece.copy_(own.narrow(0, done, piece.numel()));
    } else {
      if (done + size < total) under_way[turn ^ 1] = world_.receive(piece_at(done + size, turn ^ 1), from);
      under_way[turn]->wait();
    }
    write_stretch(layout, index_on_axis(shard_axis_, from), done, piece);
  }
}

void ModelSaver::write_stretch(const FlatGroup& layout, std::int32_t shard_index, std::int64_t done, const at::Tensor& piece) {
  const std::int64_t begin = shard_index * layout.stretch_numel + done;
  const auto width = static_cast<std::int64_t>(piece.element_size());
  const auto* bytes = static_cast<const std::byte*>(piece.const_data_ptr());
  for (const RowRange& rows : rows_in_range(layout, begin, begin + piece.numel())) {
    if (!rows.parameter.is_set()) continue;  // padding is in no file
    writer_->write(lowered_.graph->table.parameters[rows.parameter.at()].name, rows.first_element * width,
                   {bytes + rows.at * width, static_cast<std::size_t>(rows.numel * width)});
  }
}

void ModelSaver::finish() {
  if (world_.rank() == 0) {
    writer_->finish();
    write_file_whole(temporary_ / "config.json",
                     config_with_dtype(plan_.model_config, plan_.workload.precision.stored).dump(2) + "\n");
    for (const char* name : kCopiedFiles) {
      const std::filesystem::path from = request_.model_directory / name;
      std::error_code error;
      if (!std::filesystem::exists(from)) continue;
      std::filesystem::copy_file(from, temporary_ / name, error);
      if (error) refuse(fmt::format("cannot copy {}", from.string()), temporary_ / name, error.value());
    }
    replace_directory(temporary_, request_.directory);
    writer_.reset();
  }
  world_.barrier();
}

}  // namespace shardplan
