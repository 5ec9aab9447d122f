// Writes nested dictionaries, lists, text and numbers in Python's pickle format, protocol 2.
//
//   PickleWriter pickle;
//   pickle.begin_dict();
//   pickle.key("size");  pickle.integer(512);
//   pickle.key("frames");  pickle.begin_list();  pickle.text("a");  pickle.end_list();
//   pickle.end_dict();
//   std::string bytes = std::move(pickle).finish();
//
// Equal text is written once and then referred to. Long lists are written in batches, because readers put a batch on a stack.
// Only operations that Python and the page pytorch.org/memory_viz both read are used.
// Errors: CHECK when begins and ends do not pair, or more than one value stands at the top.
// Source: Python's Lib/pickletools.py, which describes each operation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardplan {

class PickleWriter {
 public:
  PickleWriter();

  void begin_dict();
  void key(std::string_view name);  // then one value
  void end_dict();
  void begin_list();
  void end_list();

  void text(std::string_view utf8);
  void integer(std::int64_t number);
  void number(double number);
  void truth(bool value);

  [[nodiscard]] std::string finish() &&;

 private:
  enum class Kind : std::uint8_t { Dict, List };
  struct Open {
    Kind kind;
    std::int64_t num_items = 0;
  };

  void begin_value();
  void put(char operation) { bytes_.push_back(operation); }
  void put_little_endian(std::uint64_t number, int num_bytes);
  void put_text(std::string_view utf8);

  std::string bytes_;
  std::vector<Open> open_;
  std::int64_t num_top_values_ = 0;
  bool has_key_ = false;
  std::unordered_map<std::string, std::uint32_t> known_text_;  // never iterated: numbers follow the order of first use
};

}  // namespace shardplan
