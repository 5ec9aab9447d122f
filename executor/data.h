// Training samples from files of token ids, and the order in which a run sees them.
//
// A sample is a pair (x[S], y[S]); y[i] is the target after x[0..i], kNoTarget is none.
//   *.jsonl  one object a line: input_ids, labels (not shifted; missing: the ids themselves), attention_mask (ones, then zeros: the
//            row ends there). Rows are cut to S, shifted, padded on the right. Packed: rows are not cut; their shifted pairs are
//            laid end to end over all files and cut into blocks of S, the remainder is dropped.
//   *.bin    flat tokens: x = tokens[k*S ..], y one further. uint16 unless tokens.json beside the file says uint32; or with the
//            1024-byte header of llm.c (magic 20240520 version 1: uint16; 20240801 version 7: uint32).
// Text is not read here: scripts/encode_text.py turns it into ids.
// Errors: ConfigError naming file, line and token for what is malformed or beyond the vocabulary; IoError when the system refuses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace shardplan {

inline constexpr std::int64_t kNoTarget = -100;

struct DataRequest {
  std::vector<std::filesystem::path> files;
  std::int64_t seq_len = 0;
  std::int64_t vocab_size = 0;
  std::int64_t pad_token_id = 0;
  bool pack = false;
};

class Samples {
 public:
  // Reads and checks all files. ConfigError when they hold no whole sample.
  explicit Samples(const DataRequest& request);
  ~Samples();
  Samples(Samples&&) noexcept;

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::int64_t seq_len() const { return seq_len_; }
  // Fills S ids and S targets of one sample.
  void copy(std::int64_t sample, std::span<std::int64_t> ids, std::span<std::int64_t> targets) const;
  [[nodiscard]] std::int64_t num_targets(std::int64_t sample) const;
  // Hash over all samples: ranks compare it before any data moves.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  struct Part;
  std::int64_t seq_len_;
  std::int64_t count_ = 0;
  std::vector<std::unique_ptr<Part>> parts_;
};

// Sequence number g of a run -> sample. Without a seed: file order, over and over. With one: a Fisher-Yates shuffle for each epoch.
class SampleOrder {
 public:
  SampleOrder(std::int64_t count, std::optional<std::int64_t> shuffle_seed) : count_(count), seed_(shuffle_seed) {}
  [[nodiscard]] std::int64_t sample(std::int64_t g);

 private:
  std::int64_t count_;
  std::optional<std::int64_t> seed_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
};

// How a run's sequences are dealt out: g = ((t*A + a)*D + d)*B + b.
struct StepShape {
  std::int64_t data_ranks = 1;   // D
  std::int64_t micro_batch = 1;  // B
  std::int64_t grad_accum = 1;   // A
};
// Samples of one micro-step of one data rank, B of them.
[[nodiscard]] std::vector<std::int64_t> samples_of(SampleOrder& order, const StepShape& shape, std::int64_t step,
                                                   std::int64_t micro_step, std::int64_t data_rank);
// Targets of a whole step over all data ranks and micro-steps; every rank computes the same number.
[[nodiscard]] std::int64_t targets_of_step(const Samples& samples, SampleOrder& order, const StepShape& shape, std::int64_t step);

}  // namespace shardplan
