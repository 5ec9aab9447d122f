#include "planner/answers/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/units.h"

namespace shardplan {
namespace {

struct Change {
  std::string text;  // flags to add: "--gpus 8"
  PlanRequest request;
};

std::optional<Remedy> tried(const Change& change) {
  Evaluator evaluator(change.request);
  const SearchResult found = search(evaluator);
  if (!found.best) return std::nullopt;
  return Remedy{.change = change.text, .planned = evaluator.full(found.best->choice)};
}

// The first of a row of ever larger changes that fits.
void add_first_that_fits(std::vector<Remedy>& remedies, const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    if (std::optional<Remedy> remedy = tried(change)) {
      remedies.push_back(std::move(*remedy));
      return;
    }
  }
}

// Knobs that were fixed, each given back to the search.
std::vector<Change> freed_knobs(const PlanRequest& request) {
  std::vector<Change> changes;
  const auto free = [&](bool given, const std::string& flag, auto clear) {
    if (!given) return;
    Change change{.text = fmt::format("without {}", flag), .request = request};
    clear(change.request.knobs);
    changes.push_back(std::move(change));
  };
  const FixedKnobs& k = request.knobs;
  free(k.shard_degree || k.replicate_degree, "--shard-degree, --replicate-degree",
       [](FixedKnobs& f) { f.shard_degree = f.replicate_degree = std::nullopt; });
  free(k.units.has_value(), "--units", [](FixedKnobs& f) { f.units = std::nullopt; });
  free(k.root.has_value(), "--root", [](FixedKnobs& f) { f.root = std::nullopt; });
  free(k.reshard.has_value(), "--reshard-after-forward", [](FixedKnobs& f) { f.reshard = std::nullopt; });
  free(k.recompute.has_value(), "--recompute", [](FixedKnobs& f) { f.recompute = std::nullopt; });
  free(k.micro_batch.has_value(), "--micro-batch", [](FixedKnobs& f) { f.micro_batch = std::nullopt; });
  free(k.grad_accum.has_value() && request.workload.global_batch > 0, "--grad-accum",
       [](FixedKnobs& f) { f.grad_accum = std::nullopt; });
  free(k.accum_sync.has_value(), "--accum-sync", [](FixedKnobs& f) { f.accum_sync = std::nullopt; });
  free(k.prefetch.has_value(), "--prefetch", [](FixedKnobs& f) { f.prefetch = std::nullopt; });
  return changes;
}

std::vector<Change> more_gpus(const PlanRequest& request) {
  std::vector<Change> changes;
  if (request.hardware.device == DeviceKind::Cpu || request.knobs.shard_degree || request.knobs.replicate_degree) return changes;
  for (std::int32_t gpus = 2 * request.gpus; gpus <= std::max(64, 4 * request.gpus); gpus *= 2) {
    if (request.workload.global_batch > 0 && request.workload.global_batch % gpus != 0) break;
    Change change{.text = fmt::format("--gpus {}", gpus), .request = request};
    change.request.gpus = gpus;
    change.request.nodes = (gpus + request.hardware.devices_per_node - 1) / request.hardware.devices_per_node;
    if (gpus % change.request.nodes == 0) changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<Change> shorter_sequences(const PlanRequest& request) {
  std::vector<Change> changes;
  for (std::int64_t seq_len = request.workload.seq_len / 2; seq_len >= 128; seq_len /= 2) {
    Change change{.text = fmt::format("--seq-len {}", seq_len), .request = request};
    change.request.workload.seq_len = seq_len;
    changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<Change> smaller_dtypes(const PlanRequest& request) {
  std::vector<Change> changes;
  Change change{.request = request};
  Precision& p = change.request.workload.precision;
  const auto narrow = [&](DType& dtype, const char* flag) {
    if (dtype != DType::F32) return;
    dtype = DType::BF16;
    change.text += fmt::format("{}{} bf16", change.text.empty() ? "" : " ", flag);
    changes.push_back(change);
  };
  narrow(p.stored, "--stored-dtype");
  narrow(p.state, "--state-dtype");
  narrow(p.reduce, "--reduce-dtype");
  return changes;
}

// Fewer trained layers, from half of them down to the head alone.
std::vector<Change> fewer_trained(const PlanRequest& request) {
  std::vector<Change> changes;
  if (request.workload.train != std::vector<std::string>{"all"}) return changes;
  for (std::int64_t layers = request.model.num_layers / 2; layers >= 1; layers /= 2) {
    Change change{.text = fmt::format("--train last:{}", layers), .request = request};
    change.request.workload.train = {fmt::format("last:{}", layers)};
    changes.push_back(std::move(change));
  }
  return changes;
}

// Devices with more memory, the smallest first.
std::vector<Change> larger_devices(const PlanRequest& request, const std::filesystem::path& folder) {
  std::vector<Change> changes;
  if (folder.empty() || request.hardware.device == DeviceKind::Cpu || request.memory_limit_bytes) return changes;
  for (const std::string& id : hardware_ids(folder)) {
    Change change{.text = fmt::format("--gpu {}", id), .request = request};
    HardwareSpec& hardware = change.request.hardware = hardware_by_id(folder, id);
    const bool holds_them = request.ranks_per_node() <= hardware.devices_per_node;
    const bool computes = hardware.peak_flops_per_second.contains(request.workload.precision.compute);
    if (hardware.device == DeviceKind::Cuda && holds_them && computes &&
        hardware.usable_memory_bytes > request.hardware.usable_memory_bytes) {
      changes.push_back(std::move(change));
    }
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.request.hardware.usable_memory_bytes < b.request.hardware.usable_memory_bytes;
  });
  // One device of each size is enough.
  changes.erase(std::unique(changes.begin(), changes.end(),
                            [](const Change& a, const Change& b) {
                              return a.request.hardware.usable_memory_bytes >> 32 == b.request.hardware.usable_memory_bytes >> 32;
                            }),
                changes.end());
  return changes;
}

// The limit itself, raised to what the closest plan needs, where the device has that much.
std::vector<Change> raised_limit(const PlanRequest& request) {
  if (!request.memory_limit_bytes || *request.memory_limit_bytes >= request.hardware.usable_memory_bytes) return {};
  PlanRequest open = request;
  open.memory_limit_bytes = std::nullopt;
  open.objective = Objective::Memory;
  Evaluator evaluator(open);
  const SearchResult found = search(evaluator);
  const std::int64_t needs = (found.best ? *found.best : *found.closest).figures.binding_bytes;
  if (!found.best) return {};
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const std::int64_t mebibytes = (needs + kMiB - 1) / kMiB;
  Change change{.text = fmt::format("--memory-limit {}MiB", mebibytes), .request = request};
  change.request.memory_limit_bytes = mebibytes * kMiB;
  return {change};
}

}  // namespace

std::vector<Remedy> remedies(const PlanRequest& request, const std::filesystem::path& hardware_configs) {
  std::vector<Remedy> result;
  for (const Change& change : freed_knobs(request)) {
    if (std::optional<Remedy> remedy = tried(change)) result.push_back(std::move(*remedy));
  }
  add_first_that_fits(result, raised_limit(request));
  add_first_that_fits(result, smaller_dtypes(request));
  add_first_that_fits(result, shorter_sequences(request));
  add_first_that_fits(result, more_gpus(request));
  add_first_that_fits(result, fewer_trained(request));
  add_first_that_fits(result, larger_devices(request, hardware_configs));
  return result;
}

}  // namespace shardplan
