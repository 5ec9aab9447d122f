// Random numbers that are a pure function of (seed, name, index): the same bits on every machine and in every language.
//
// key = FNV-1a 64 of "<seed>:<name>"; word(i) = splitmix64's mixing of key + (i + 1) * 0x9E3779B97F4A7C15; a normal number is the
// sum of four uniforms, shifted and scaled to mean 0, variance 1. No state is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardplan {

class SeededWords {
 public:
  SeededWords(std::uint64_t seed, std::string_view name) {
    key_ = 14695981039346656037ULL;
    for (const char c : std::to_string(seed) + ":" + std::string(name))
      key_ = (key_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  [[nodiscard]] std::uint64_t word(std::uint64_t i) const {
    std::uint64_t z = key_ + (i + 1) * 0x9E3779B97F4A7C15ULL;
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9ULL;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  [[nodiscard]] double uniform(std::uint64_t i) const { return static_cast<double>(word(i) >> 11) * 0x1.0p-53; }  // [0, 1)
  [[nodiscard]] double normal(std::uint64_t e) const {
    // 1.7320508075688772 = sqrt(3): four uniforms have variance 4/12.
    return 1.7320508075688772 * ((((uniform(4 * e) + uniform(4 * e + 1)) + uniform(4 * e + 2)) + uniform(4 * e + 3)) - 2.0);
  }

 private:
  std::uint64_t key_;
};

}  // namespace shardplan
