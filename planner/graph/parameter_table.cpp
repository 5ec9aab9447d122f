#include "planner/graph/parameter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <regex>

#include "core/error.h"
#include "core/json_reader.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {
namespace {

std::regex expression_from(const std::string& text, const char* flag) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw UsageError(fmt::format("\"{}\" is no regular expression: {}", text, error.what()), flag);
  }
}

std::int64_t count_of_last(const std::string& word, const ModelSpec& model) {
  const std::string_view digits = std::string_view(word).substr(5);
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc{} || end != digits.data() + digits.size() || count < 1 || count > model.num_layers) {
    throw UsageError(fmt::format("\"{}\" names no number of layers", word), "--train",
                     fmt::format("last:1 to last:{}", model.num_layers));
  }
  return count;
}

// What one word of --train selects.
class Selection {
 public:
  Selection(const std::string& word, const ParameterTable& table, const ModelSpec& model)
      : word_(word), is_tied_(table.head_is_tied), num_layers_(model.num_layers) {
    if (word.starts_with("last:")) {
      last_ = count_of_last(word, model);
    } else if (word.starts_with("regex:")) {
      expression_ = expression_from(word.substr(std::string_view("regex:").size()), "--train");
    } else {
      const std::vector<std::string> words = {"all", "head", "embed", "last:N", "norms", "biases", "regex:RE"};
      if (std::find(words.begin(), words.end(), word) == words.end()) {
        const std::string near = nearest(word, words);
        throw UsageError(
            fmt::format("\"{}\" selects nothing that trains", word), "--train",
            fmt::format("one of {}{}", fmt::join(words, ", "), near.empty() ? "" : fmt::format("; the nearest is \"{}\"", near)));
      }
    }
  }

  [[nodiscard]] bool selects(const Parameter& parameter) const {
    if (word_ == "all") return true;
    if (word_ == "head") return parameter.part == ParameterPart::Head || (is_tied_ && parameter.part == ParameterPart::Embedding);
    if (word_ == "embed") return parameter.part == ParameterPart::Embedding;
    if (word_ == "norms") return parameter.part == ParameterPart::LayerNorm || parameter.part == ParameterPart::FinalNorm;
    if (word_ == "biases") return parameter.kind == ParameterKind::Bias;
    if (last_ > 0) return parameter.layer >= num_layers_ - last_;
    return std::regex_search(parameter.name, expression_);
  }

 private:
  std::string word_;
  std::regex expression_;
  bool is_tied_;
  std::int64_t num_layers_;
  std::int64_t last_ = 0;
};

}  // namespace

std::int64_t ParameterTable::total_numel() const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters) sum += parameter.numel();
  return sum;
}

std::int64_t ParameterTable::trainable_numel() const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters) sum += parameter.trainable ? parameter.numel() : 0;
  return sum;
}

ParameterTable parameter_table(const ModelSpec& model) {
  ParameterTable table;
  TableWriter writer(model, table);
  family_of(model).list(writer, model);
  return table;
}

void select_trainable(ParameterTable& table, const ModelSpec& model, const std::vector<std::string>& train,
                      const std::vector<std::string>& freeze) {
  for (Parameter& parameter : table.parameters) parameter.trainable = false;
  for (const std::string& word : train) {
    const Selection selection(word, table, model);
    for (Parameter& parameter : table.parameters) parameter.trainable = parameter.trainable || selection.selects(parameter);
  }
  for (const std::string& text : freeze) {
    const std::regex expression = expression_from(text, "--freeze");
    for (Parameter& parameter : table.parameters)
      parameter.trainable = parameter.trainable && !std::regex_search(parameter.name, expression);
  }
  if (table.trainable_numel() == 0) {
    throw UsageError(fmt::format("nothing is left to train: no parameter of {} is selected", model.name), "--train, --freeze",
                     "select at least one parameter");
  }
}

}  // namespace shardplan
