#include "core/names.h"

namespace shardplan {

std::string letters_and_digits(std::string_view name) {
  std::string kept;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') kept += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) kept += c;
  }
  return kept;
}

}  // namespace shardplan
