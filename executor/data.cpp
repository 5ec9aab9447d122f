#include "executor/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/units.h"
#include "executor/safetensors.h"
#include "executor/seeded_words.h"

namespace shardplan {
namespace {

constexpr const char* kTextRemedy = "encode it first: scripts/encode_text.py --model DIR --out DIR FILE";

std::string at_line(const std::filesystem::path& file, std::int64_t line) { return fmt::format("{}:{}", file.string(), line); }

// One row of a JSONL file: ids, and the target after each.
struct Row {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
};

std::vector<std::int64_t> integers_of(const nlohmann::json& row, const char* key, const std::string& where) {
  const nlohmann::json& list = row[key];
  const bool whole =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const nlohmann::json& v) { return v.is_number_integer(); });
  if (!whole) throw ConfigError(fmt::format("'{}' is no list of integers", key), where);
  return list.get<std::vector<std::int64_t>>();
}

Row row_from_line(const std::string& text, const DataRequest& request, const std::string& where, bool cut) {
  const nlohmann::json row = nlohmann::json::parse(text, nullptr, false);
  if (row.is_discarded() || !row.is_object()) throw ConfigError("line is no JSON object", where);
  for (const char* key : {"prompt", "messages", "conversations", "text"}) {
    if (row.contains(key) && !row.contains("input_ids")) {
      throw ConfigError(fmt::format("row holds text under '{}'; the executor reads token ids", key), where, kTextRemedy);
    }
  }
  if (!row.contains("input_ids"))
    throw ConfigError("row has no 'input_ids'", where, "each line is {\"input_ids\": [...], \"labels\": [...]}");
  std::vector<std::int64_t> ids = integers_of(row, "input_ids", where);
  std::vector<std::int64_t> labels = row.contains("labels") ? integers_of(row, "labels", where) : ids;
  if (labels.size() != ids.size()) {
    throw ConfigError(fmt::format("row has {} input_ids and {} labels", ids.size(), labels.size()), where,
                      "labels are not shifted: one for each id, -100 where none");
  }
  if (row.contains("attention_mask")) {
    const std::vector<std::int64_t> mask = integers_of(row, "attention_mask", where);
    const auto ones = static_cast<std::size_t>(std::find(mask.begin(), mask.end(), 0) - mask.begin());
    if (mask.size() != ids.size() ||
        std::any_of(mask.begin() + static_cast<std::ptrdiff_t>(ones), mask.end(), [](std::int64_t m) { return m != 0; })) {
      throw ConfigError("'attention_mask' is not ones followed by zeros, one for each id", where, "pad on the right");
    }
    ids.resize(ones);
    labels.resize(ones);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool bad_id = ids[i] < 0 || ids[i] >= request.vocab_size;
    const bool bad_label = labels[i] != kNoTarget && (labels[i] < 0 || labels[i] >= request.vocab_size);
    if (!bad_id && !bad_label) continue;
    throw ConfigError(fmt::format("{} {} is outside the vocabulary of {}", bad_id ? "token id" : "label",
                                  bad_id ? ids[i] : labels[i], text_with_thousands(request.vocab_size)),
                      fmt::format("{}, token {}", where, i), "encode the text with the tokenizer of this model");
  }
  if (cut && static_cast<std::int64_t>(ids.size()) > request.seq_len) {
    ids.resize(static_cast<std::size_t>(request.seq_len));
    labels.resize(static_cast<std::size_t>(request.seq_len));
  }
  Row out;
  out.ids.assign(ids.begin(), ids.end());
  for (std::size_t i = 0; i < ids.size(); ++i)
    out.targets.push_back(static_cast<std::int32_t>(i + 1 < labels.size() ? labels[i + 1] : kNoTarget));
  return out;
}

}  // namespace

// Samples that lie together: pairs made from rows, or a mapped file of tokens.
struct Samples::Part {
  std::int64_t count = 0;
  std::vector<std::int32_t> ids, targets;  // count * S each, made from rows
  std::unique_ptr<MappedFile> tokens;      // or mapped
  std::size_t width_bytes = 2;
  std::size_t first_byte = 0;

  [[nodiscard]] std::int64_t token(std::int64_t i) const {
    const std::byte* at = tokens->bytes().data() + first_byte + static_cast<std::size_t>(i) * width_bytes;
    std::uint32_t value = 0;
    std::memcpy(&value, at, width_bytes);  // little-endian file on a little-endian machine
    return value;
  }
};

namespace {

std::vector<Row> rows_of(const std::filesystem::path& file, const DataRequest& request) {
  std::ifstream stream(file);
  if (!stream) throw IoError(fmt::format("cannot open file: {}", std::strerror(errno)), file.string());
  std::vector<Row> rows;
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    rows.push_back(row_from_line(line, request, at_line(file, number), !request.pack));
  }
  return rows;
}

// Where tokens start, how wide they are and how many there are.
struct TokenFile {
  std::size_t first_byte = 0;
  std::size_t width_bytes = 2;
  std::int64_t count = 0;
};

TokenFile token_file_of(const MappedFile& file) {
  constexpr std::size_t kHeaderBytes = 256 * 4;  // llm.c: 256 int32
  const std::span<const std::byte> bytes = file.bytes();
  std::int32_t header[3] = {};
  if (bytes.size() >= kHeaderBytes) std::memcpy(header, bytes.data(), sizeof header);
  TokenFile t;
  if ((header[0] == 20240520 && header[1] == 1) || (header[0] == 20240801 && header[1] == 7)) {
    t = {.first_byte = kHeaderBytes, .width_bytes = header[0] == 20240520 ? 2U : 4U, .count = header[2]};
    const std::size_t expected = kHeaderBytes + static_cast<std::size_t>(std::max(t.count, std::int64_t{0})) * t.width_bytes;
    if (t.count < 0 || expected != bytes.size()) {
      throw ConfigError(fmt::format("header promises {} tokens in {} bytes, the file has {}", header[2],
                                    text_with_thousands(static_cast<std::int64_t>(expected)),
                                    text_with_thousands(static_cast<std::int64_t>(bytes.size()))),
                        file.path().string(), "the copy or download did not finish: fetch the file again");
    }
    return t;
  }
  const std::filesystem::path side = file.path().parent_path() / "tokens.json";
  if (std::filesystem::exists(side)) {
    const nlohmann::ordered_json document = json_from_file(side);
    JsonReader reader(document, side.string());
    const std::string dtype = reader.string("dtype");
    if (dtype != "uint16" && dtype != "uint32")
      reader.fail("dtype", fmt::format("expected 'uint16' or 'uint32', found '{}'", dtype));
    t.width_bytes = dtype == "uint16" ? 2 : 4;
  }
  if (bytes.size() % t.width_bytes != 0) {
    throw ConfigError(fmt::format("{} bytes are no whole number of {}-byte tokens",
                                  text_with_thousands(static_cast<std::int64_t>(bytes.size())), t.width_bytes),
                      file.path().string(), "say in tokens.json beside the file which dtype it has: {\"dtype\": \"uint32\"}");
  }
  t.count = static_cast<std::int64_t>(bytes.size() / t.width_bytes);
  return t;
}

}  // namespace

Samples::Samples(const DataRequest& request) : seq_len_(request.seq_len) {
  const std::int64_t s = seq_len_;
  CHECK(s > 0, "a sample has at least one token");
  Row stream;  // packed rows of all files
  for (const std::filesystem::path& file : request.files) {
    auto part = std::make_unique<Part>();
    if (file.extension() == ".jsonl" || file.extension() == ".json") {
      for (Row& row : rows_of(file, request)) {
        Row& to = request.pack ? stream : row;
        if (request.pack) {
          to.ids.insert(to.ids.end(), row.ids.begin(), row.ids.end());
          to.targets.insert(to.targets.end(), row.targets.begin(), row.targets.end());
          continue;
        }
        row.ids.resize(static_cast<std::size_t>(s), static_cast<std::int32_t>(request.pad_token_id));
        row.targets.resize(static_cast<std::size_t>(s), static_cast<std::int32_t>(kNoTarget));
        part->ids.insert(part->ids.end(), row.ids.begin(), row.ids.end());
        part->targets.insert(part->targets.end(), row.targets.begin(), row.targets.end());
        ++part->count;
      }
    } else if (file.extension() == ".bin") {
      if (request.pack)
        throw UsageError("--pack is for JSONL rows; a .bin file is packed already", file.string(), "leave --pack out");
      part->tokens = std::make_unique<MappedFile>(file);
      const TokenFile t = token_file_of(*part->tokens);
      part->first_byte = t.first_byte;
      part->width_bytes = t.width_bytes;
      part->count = std::max<std::int64_t>(0, (t.count - 1) / s);
      for (std::int64_t i = 0; i < t.count; ++i) {
        if (part->token(i) < request.vocab_size) continue;
        throw ConfigError(
            fmt::format("token id {} is outside the vocabulary of {}", part->token(i), text_with_thousands(request.vocab_size)),
            fmt::format("{}, token {}", file.string(), i), "encode the text with the tokenizer of this model");
      }
    } else {
      throw UsageError(fmt::format("data file '{}' is neither .jsonl nor .bin", file.string()), "--data", kTextRemedy);
    }
    count_ += part->count;
    if (part->count > 0) parts_.push_back(std::move(part));
  }
  if (!stream.ids.empty()) {
    auto part = std::make_unique<Part>();
    part->count = static_cast<std::int64_t>(stream.ids.size()) / s;
    stream.ids.resize(static_cast<std::size_t>(part->count * s));
    stream.targets.resize(stream.ids.size());
    part->ids = std::move(stream.ids);
    part->targets = std::move(stream.targets);
    count_ += part->count;
    parts_.push_back(std::move(part));
  }
  if (count_ == 0) {
    throw ConfigError(fmt::format("the data holds no whole sample of {} tokens", text_with_thousands(s)),
                      request.files.empty() ? "--data" : request.files.front().string(), "give more data or a smaller --seq-len");
  }
}

Samples::~Samples() = default;
Samples::Samples(Samples&&) noexcept = default;

void Samples::copy(std::int64_t sample, std::span<std::int64_t> ids, std::span<std::int64_t> targets) const {
  for (const auto& part : parts_) {
    if (sample >= part->count) {
      sample -= part->count;
      continue;
    }
    for (std::int64_t i = 0; i < seq_len_; ++i) {
      const std::int64_t at = sample * seq_len_ + i;
      const auto to = static_cast<std::size_t>(i);
      ids[to] = part->tokens ? part->token(at) : part->ids[static_cast<std::size_t>(at)];
      targets[to] = part->tokens ? part->token(at + 1) : part->targets[static_cast<std::size_t>(at)];
    }
    return;
  }
  CHECK(false, "a sample number is below the number of samples");
}

std::int64_t Samples::num_targets(std::int64_t sample) const {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(seq_len_)), targets(ids.size());
  copy(sample, ids, targets);
  return static_cast<std::int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), kNoTarget);
}

std::uint64_t Samples::fingerprint() const {
  std::uint64_t hash = 14695981039346656037ULL;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(seq_len_)), targets(ids.size());
  for (std::int64_t k = 0; k < count_; ++k) {
    copy(k, ids, targets);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      hash = (hash ^ static_cast<std::uint64_t>(ids[i])) * 1099511628211ULL;
      hash = (hash ^ static_cast<std::uint64_t>(targets[i])) * 1099511628211ULL;
    }
  }
  return hash;
}

std::int64_t SampleOrder::sample(std::int64_t g) {
  const std::int64_t epoch = g / count_, i = g % count_;
  if (!seed_) return i;
  if (epoch != epoch_) {
    order_.resize(static_cast<std::size_t>(count_));
    std::iota(order_.begin(), order_.end(), 0);
    const SeededWords words(static_cast<std::uint64_t>(*seed_), fmt::format("epoch{}", epoch));
    for (std::int64_t k = count_ - 1; k > 0; --k) {
      const std::uint64_t j = words.word(static_cast<std::uint64_t>(count_ - 1 - k)) % static_cast<std::uint64_t>(k + 1);
      std::swap(order_[static_cast<std::size_t>(k)], order_[j]);
    }
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(i)];
}

std::vector<std::int64_t> samples_of(SampleOrder& order, const StepShape& shape, std::int64_t step, std::int64_t micro_step,
                                     std::int64_t data_rank) {
  std::vector<std::int64_t> samples;
  const std::int64_t first = ((step * shape.grad_accum + micro_step) * shape.data_ranks + data_rank) * shape.micro_batch;
  for (std::int64_t b = 0; b < shape.micro_batch; ++b) samples.push_back(order.sample(first + b));
  return samples;
}

std::int64_t targets_of_step(const Samples& samples, SampleOrder& order, const StepShape& shape, std::int64_t step) {
  const std::int64_t per_step = shape.grad_accum * shape.data_ranks * shape.micro_batch;
  std::int64_t targets = 0;
  for (std::int64_t g = step * per_step; g < (step + 1) * per_step; ++g) targets += samples.num_targets(order.sample(g));
  return targets;
}

}  // namespace shardplan
