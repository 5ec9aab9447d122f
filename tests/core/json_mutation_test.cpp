// Readers of files meet anything: whatever a mutation makes of a good file, it reads or it is refused by an Error, never otherwise.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "core/hardware_spec.h"
#include "core/json_files.h"
#include "core/json_reader.h"
#include "tests/core/random_program.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;
using Read = void (*)(const Json&);

// Fixed draws: std::mt19937_64 is the same everywhere, the distributions of the library are not.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t end) { return end == 0 ? 0 : engine_() % end; }

 private:
  std::mt19937_64 engine_;
};

struct Counts {
  int read = 0, refused = 0;
};

void expect_read_or_refused(const std::string& text, Read read, Counts& counts) {
  try {
    read(json_from_text(text, "mutated.json"));
    ++counts.read;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "");
    ++counts.refused;
  } catch (const std::exception& other) {
    FAIL() << "not an Error: " << other.what() << "\n" << text.substr(0, 2000);
  }
}

// Bytes: flipped, cut, doubled, or replaced by a character with a meaning in JSON.
std::string mutated_text(std::string text, Dice& dice) {
  constexpr std::string_view kSpecial = "{}[]\",:-+.eE0129ntf\\u \n\x80\xff";
  for (std::size_t times = 1 + dice.below(4); times > 0 && !text.empty(); --times) {
    const std::size_t at = dice.below(text.size());
    switch (dice.below(5)) {
      case 0:
        text[at] = static_cast<char>(dice.below(256));
        break;
      case 1:
        text.erase(at, 1 + dice.below(20));
        break;
      case 2:
        text.insert(at, text.substr(dice.below(text.size()), dice.below(30)));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text[at] = kSpecial[dice.below(kSpecial.size())];
        break;
    }
  }
  return text;
}

// Values: another of any type in place of one that is there, a key renamed, removed, or moved.
const std::vector<Json>& odd_values() {
  static const std::vector<Json> values = {nullptr,
                                           true,
                                           0,
                                           -1,
                                           1,
                                           7,
                                           INT64_MIN,
                                           INT64_MAX,
                                           UINT64_MAX,
                                           2147483648,
                                           0.5,
                                           1e300,
                                           "",
                                           "compute",
                                           "80 GiB",
                                           "9e99 B",
                                           "free",
                                           std::string(300, 'x'),
                                           Json::array(),
                                           Json::object(),
                                           {{"kind", "free"}},
                                           {1, 2}};
  return values;
}

void mutate_value(Json& document, Dice& dice) {
  Json* place = &document;
  while (place->is_structured() && !place->empty() && dice.below(6) != 0) {
    auto child = place->begin();
    std::advance(child, static_cast<std::ptrdiff_t>(dice.below(place->size())));
    if (place->is_object() && dice.below(40) == 0) {
      place->erase(child.key());
      return;
    }
    if (place->is_object() && dice.below(40) == 0) {
      const Json value = *child;
      const std::string key = child.key();
      place->erase(key);
      (*place)[key + "s"] = value;
      return;
    }
    place = &*child;
  }
  *place = odd_values()[dice.below(odd_values().size())];
}

Counts mutate(const std::string& seed_text, Read read, std::uint64_t seed, int rounds) {
  Dice dice(seed);
  Counts counts;
  for (int i = 0; i < rounds; ++i) {
    expect_read_or_refused(mutated_text(seed_text, dice), read, counts);
    Json document = Json::parse(seed_text);
    for (std::size_t times = 1 + dice.below(3); times > 0; --times) mutate_value(document, dice);
    expect_read_or_refused(document.dump(), read, counts);
  }
  return counts;
}

// Both ends must occur, or the mutations test nothing.
void expect_both(const Counts& counts) {
  EXPECT_GT(counts.read, 0);
  EXPECT_GT(counts.refused, 100);
}

TEST(Mutations, ProgramFilesReadOrAreRefused) {
  Counts sum;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    // A program from the generator of the properties, at a fixed seed and size.
    const StepProgram program = random_program()(rc::Random(seed), 50).value();
    const Counts counts = mutate(
        json_from_program(program).dump(), [](const Json& document) { (void)program_from_json(document, "mutated.json"); }, seed,
        150);
    sum.read += counts.read;
    sum.refused += counts.refused;
  }
  expect_both(sum);
}

TEST(Mutations, TimelineFilesReadOrAreRefused) {
  Timeline timeline;
  timeline.streams = {StreamKind::Compute, StreamKind::Gather};
  for (std::int64_t i = 0; i < 3; ++i) {
    timeline.tasks.push_back({.task = TaskId(i), .kind = TaskKind::Forward, .stream = StreamId(i % 2), .label = "forward"});
    timeline.memory.push_back({.category = MemoryCategory::Activation, .delta_bytes = 100 * i, .task = TaskId(i)});
  }
  timeline.collectives = {{.kind = CollectiveKind::AllReduce, .axis = "replicate", .calls = 3, .bytes_per_rank = 12}};
  timeline.at_peak[MemoryCategory::Activation] = 300;
  const Counts counts = mutate(
      json_from_timeline(timeline).dump(), [](const Json& document) { (void)timeline_from_json(document, "mutated.json"); }, 1,
      1200);
  expect_both(counts);
}

TEST(Mutations, HardwareFilesReadOrAreRefused) {
  std::ifstream stream(std::string(SHARDPLAN_SOURCE_DIR) + "/configs/hardware/h100-80g.json");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  ASSERT_FALSE(text.empty());
  const Counts counts = mutate(
      text, [](const Json& document) { (void)hardware_from_json(document, "mutated.json"); }, 1, 1200);
  expect_both(counts);
}

}  // namespace
}  // namespace shardplan
