// The answer for people: what fits, how fast, what was decided and what each decision bought. At most 100 columns, ASCII.
//
// Amounts are GiB with two decimals, MiB where the device holds less than 1 GiB; the lines of a breakdown add up to its total as
// printed. Colour only when asked for.
#pragma once

#include <map>
#include <string>

#include "planner/answers/answer.h"

namespace shardplan {

struct TextOptions {
  bool colour = false;
  bool explain = false;                      // the figures of every word that was not chosen
  std::string plan_file;                     // "" when no plan was written
  std::map<std::string, std::string> given;  // values of the flags of the command: "--gpus" -> "4"
};

[[nodiscard]] std::string text_from_answer(const Answer& answer, const TextOptions& options);

// Categories at the peak, largest first, over as few lines as 100 columns allow; `indent` blanks at the left.
[[nodiscard]] std::string breakdown_text(const CategoryBytes& bytes, int indent);

// "step 2", "evaluation", ...
[[nodiscard]] std::string phase_text(Phase phase);

// What a person should know before trusting the plan: units that hold much of the model, ... One sentence each.
[[nodiscard]] std::vector<std::string> warnings_of(const PlannedChoice& planned, const std::vector<UnitLayout>& units);

}  // namespace shardplan
