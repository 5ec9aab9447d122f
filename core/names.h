// How names that people type are compared: by letters and digits alone. "Llama-3-8B", "llama3_8b" and "llama3-8b" are one.
//
// Of ASCII; every other byte is left out.
#pragma once

#include <string>
#include <string_view>

namespace shardplan {

[[nodiscard]] std::string letters_and_digits(std::string_view name);  // "llama38b"

}  // namespace shardplan
