#include "simulator/pickle_writer.h"

#include <bit>
#include <limits>
#include <utility>

#include "core/error.h"

namespace shardplan {
namespace {

// Operations, by the names that pickletools gives them.
constexpr char kProto = '\x80';
constexpr char kStop = '.';
constexpr char kMark = '(';
constexpr char kEmptyDict = '}';
constexpr char kSetItems = 'u';
constexpr char kEmptyList = ']';
constexpr char kAppends = 'e';
constexpr char kBinInt = 'J';
constexpr char kBinInt1 = 'K';
constexpr char kLong1 = '\x8a';
constexpr char kBinFloat = 'G';
constexpr char kNewTrue = '\x88';
constexpr char kNewFalse = '\x89';
constexpr char kBinUnicode = 'X';
constexpr char kBinPut = 'q';
constexpr char kLongBinPut = 'r';
constexpr char kBinGet = 'h';
constexpr char kLongBinGet = 'j';

constexpr std::int64_t kBatch = 1000;  // as Python's own writer

}  // namespace

PickleWriter::PickleWriter() {
  put(kProto);
  put('\x02');
}

void PickleWriter::put_little_endian(std::uint64_t number, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) put(static_cast<char>(static_cast<unsigned char>(number >> (8 * i))));
}

// Every value passes here: in a list it may open a new batch, in a dictionary it needs its key.
void PickleWriter::begin_value() {
  if (open_.empty()) {
    CHECK(++num_top_values_ == 1, "a pickle holds one value");
    return;
  }
  Open& open = open_.back();
  if (open.kind == Kind::Dict) {
    CHECK(std::exchange(has_key_, false), "a value in a dictionary has a key");
    return;
  }
  if (open.num_items > 0 && open.num_items % kBatch == 0) {
    put(kAppends);
    put(kMark);
  }
  ++open.num_items;
}

void PickleWriter::begin_dict() {
  begin_value();
  open_.push_back({Kind::Dict});
  put(kEmptyDict);
  put(kMark);
}

void PickleWriter::key(std::string_view name) {
  CHECK(!open_.empty() && open_.back().kind == Kind::Dict && !has_key_, "a key stands in a dictionary, before its value");
  put_text(name);
  has_key_ = true;
}

void PickleWriter::end_dict() {
  CHECK(!open_.empty() && open_.back().kind == Kind::Dict && !has_key_, "a dictionary ends after a value");
  open_.pop_back();
  put(kSetItems);
}

void PickleWriter::begin_list() {
  begin_value();
  open_.push_back({Kind::List});
  put(kEmptyList);
  put(kMark);
}

void PickleWriter::end_list() {
  CHECK(!open_.empty() && open_.back().kind == Kind::List, "a list ends where it began");
  open_.pop_back();
  put(kAppends);
}

void PickleWriter::text(std::string_view utf8) {
  begin_value();
  put_text(utf8);
}

void PickleWriter::put_text(std::string_view utf8) {
  const auto [known, is_new] = known_text_.try_emplace(std::string(utf8), static_cast<std::uint32_t>(known_text_.size()));
  const std::uint32_t number = known->second;
  const bool is_short = number <= std::numeric_limits<std::uint8_t>::max();
  if (is_new) {
    put(kBinUnicode);
    put_little_endian(utf8.size(), 4);
    bytes_.append(utf8);
    put(is_short ? kBinPut : kLongBinPut);
  } else {
    put(is_short ? kBinGet : kLongBinGet);
  }
  put_little_endian(number, is_short ? 1 : 4);
}

void PickleWriter::integer(std::int64_t number) {
  begin_value();
  if (number >= 0 && number <= std::numeric_limits<std::uint8_t>::max()) {
    put(kBinInt1);
    put_little_endian(static_cast<std::uint64_t>(number), 1);
  } else if (number >= std::numeric_limits<std::int32_t>::min() && number <= std::numeric_limits<std::int32_t>::max()) {
    put(kBinInt);
    put_little_endian(static_cast<std::uint64_t>(number), 4);
  } else {
    put(kLong1);
    put('\x08');  // bytes that follow
    put_little_endian(static_cast<std::uint64_t>(number), 8);
  }
}

void PickleWriter::number(double number) {
  begin_value();
  put(kBinFloat);
  const auto bits = std::bit_cast<std::uint64_t>(number);
  for (int i = 7; i >= 0; --i) put(static_cast<char>(static_cast<unsigned char>(bits >> (8 * i))));  // big-endian
}

void PickleWriter::truth(bool value) {
  begin_value();
  put(value ? kNewTrue : kNewFalse);
}

std::string PickleWriter::finish() && {
  CHECK(open_.empty() && num_top_values_ == 1, "a pickle is finished when everything begun has ended");
  put(kStop);
  return std::move(bytes_);
}

}  // namespace shardplan
