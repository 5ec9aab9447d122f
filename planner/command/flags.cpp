#include "planner/command/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>

#include "core/error.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

struct VerbRow {
  Verb verb;
  std::string_view name;
  char letter;
  std::string_view usage;
  std::string_view help;
};

constexpr std::array<VerbRow, 8> kVerbs{{
    {Verb::Plan, "plan", 'p', "plan MODEL --gpus N [flags]", "Answers: does it fit, what is the fastest way, what will happen."},
    {Verb::Explain, "explain", 'e', "plan explain MODEL --gpus N [flags]",
     "Plans, and shows for every decision what the other words would have given."},
    {Verb::Simulate, "simulate", 's', "plan simulate PLAN.json [flags]", "Gives a plan time: any number of GPUs, none needed."},
    {Verb::Check, "check", 'c', "plan check PLAN.json [flags]",
     "Judges a plan file without the search: ok, or the laws it breaks."},
    {Verb::Validate, "validate", 'v', "plan validate FILE... [flags]",
     "Predicts the cases of truth documents and prints the errors."},
    {Verb::Models, "models", 'm', "plan models [flags]", "Lists the models known by name."},
    {Verb::Hardware, "hardware", 'h', "plan hardware [ID] [flags]", "Lists the hardware known by name, or shows one."},
    {Verb::Env, "env", 'n', "plan env [flags]", "Prints versions and settings for a bug report."},
}};

const VerbRow& row_of(Verb verb) {
  return *std::find_if(kVerbs.begin(), kVerbs.end(), [&](const VerbRow& row) { return row.verb == verb; });
}

// What people type for a verb elsewhere.
struct VerbAlias {
  std::string_view word;
  Verb verb;
};
constexpr std::array<VerbAlias, 6> kVerbAliases{{{"estimate", Verb::Plan},
                                                 {"estimate-memory", Verb::Plan},
                                                 {"ls", Verb::Models},
                                                 {"list", Verb::Models},
                                                 {"doctor", Verb::Env},
                                                 {"verify", Verb::Check}}};

constexpr std::string_view kAsked = "What is asked";
constexpr std::string_view kPrecision = "Precision and optimizer";
constexpr std::string_view kKnobs = "Decisions (given: fixed; not given: searched)";
constexpr std::string_view kOutput = "Output";

constexpr std::array kFlags{
    FlagRow{"model", "M", kAsked, "alias (plan models), folder or config.json, hub id in the local cache", false, true, "pe"},
    FlagRow{"gpus", "N", kAsked, "all GPUs of the job (1)", false, true, "pe"},
    FlagRow{"nodes", "K", kAsked, "machines they are spread over (as few as the hardware allows)", false, true, "pe"},
    FlagRow{"gpu", "NAME", kAsked, "kind of GPU (h100-80g); plan hardware lists them", false, true, "pesc"},
    FlagRow{"hardware", "FILE", kAsked, "hardware file; local: this machine; local-cpu: its CPU ranks", false, true, "pesc"},
    FlagRow{"seq-len", "S", kAsked, "tokens per sequence (2048)", false, true, "pe"},
    FlagRow{"global-batch", "G", kAsked, "sequences per optimizer step over all ranks (free)", false, true, "pe"},
    FlagRow{"train", "X", kAsked, "all, head, embed, last:N, norms, biases, regex:RE; joined by + or repeated (all)", true, true,
            "pe"},
    FlagRow{"freeze", "RE", kAsked, "takes parameters away from what trains", true, true, "pe"},
    FlagRow{"memory-limit", "B", kAsked, "per GPU, \"40 GiB\" (what the device lets a process use)", false, true, "pesc"},
    FlagRow{"host-memory-limit", "B", kAsked, "per node (the node's memory)", false, true, "pe"},
    FlagRow{"objective", "WORD", kAsked, "throughput: most tokens per second that fits; memory: least memory (throughput)", false,
            true, "pe"},
    FlagRow{"workload", "FILE", kAsked, "job file: these flags as JSON; flags beside it win", false, false, "pe"},
    FlagRow{"stored-dtype", "T", kPrecision, "weights between steps: fp32, bf16 (fp32)", false, true, "pe"},
    FlagRow{"compute-dtype", "T", kPrecision, "weights as gathered, and activations: fp32, bf16 (bf16)", false, true, "pe"},
    FlagRow{"reduce-dtype", "T", kPrecision, "gradients while they are summed: fp32, bf16 (fp32)", false, true, "pe"},
    FlagRow{"state-dtype", "T", kPrecision, "optimizer moments: fp32, bf16 (fp32)", false, true, "pe"},
    FlagRow{"optimizer", "NAME", kPrecision, "adamw (adamw)", false, true, "pe"},
    FlagRow{"optimizer-form", "FORM", kPrecision, "fused (fused)", false, true, "pe"},
    FlagRow{"lr", "X", kPrecision, "learning rate (1e-3)", false, true, "pe"},
    FlagRow{"betas", "B1,B2", kPrecision, "(0.9,0.999)", false, true, "pe"},
    FlagRow{"eps", "X", kPrecision, "(1e-8)", false, true, "pe"},
    FlagRow{"weight-decay", "X", kPrecision, "(0)", false, true, "pe"},
    FlagRow{"decay", "WORD", kPrecision, "what decays: all, matrices (all)", false, true, "pe"},
    FlagRow{"warmup", "STEPS", kPrecision, "steps of rising learning rate (0)", false, true, "pe"},
    FlagRow{"schedule", "WORD", kPrecision, "constant, linear, cosine (constant)", false, true, "pe"},
    FlagRow{"clip-norm", "X", kPrecision, "largest gradient norm; 0: no clipping (0)", false, true, "pe"},
    FlagRow{"steps", "N", kPrecision, "optimizer steps; 0: given at execution (0)", false, true, "pe"},
    FlagRow{"shuffle", "SEED", kPrecision, "order of the samples (file order)", false, true, "pe"},
    FlagRow{"pack", "", kPrecision, "lay samples end to end and cut blocks of S", false, true, "pe"},
    FlagRow{"seed", "N", kPrecision, "of every random choice of the run (7)", false, true, "pe"},
    FlagRow{"shard-degree", "N", kKnobs, "ranks that share one copy of weights and states", false, true, "pe"},
    FlagRow{"replicate-degree", "N", kKnobs, "copies; shard degree x replicate degree = GPUs", false, true, "pe"},
    FlagRow{"units", "WORD", kKnobs, "what is gathered together: blocks, blocks:K, halves, whole", false, true, "pe"},
    FlagRow{"root", "WORD", kKnobs, "embedding and head in one unit or two: joint, split", false, true, "pe"},
    FlagRow{"reshard-after-forward", "WORD", kKnobs, "all, none, all-but-last", false, true, "pe"},
    FlagRow{"recompute", "WORD", kKnobs, "none, full, blocks:K, halves:attention, halves:mlp, keep:OPS", false, true, "pe"},
    FlagRow{"micro-batch", "B", kKnobs, "sequences per rank and micro-step", false, true, "pe"},
    FlagRow{"grad-accum", "N", kKnobs, "micro-steps per optimizer step", false, true, "pe"},
    FlagRow{"accum-sync", "WORD", kKnobs, "when gradients are reduced: last, every", false, true, "pe"},
    FlagRow{"prefetch", "N", kKnobs, "units gathered ahead of use: 0, 1, 2", false, true, "pe"},
    FlagRow{"init", "WORD", kKnobs, "simple: every rank reads its rows; delayed: rank 0 reads and sends", false, true, "pe"},
    FlagRow{"top", "K", kOutput, "alternatives to show (3)", false, false, "pe"},
    FlagRow{"explain", "", kOutput, "figures of every word that was not chosen", false, false, "p"},
    FlagRow{"output", "FILE", kOutput, "-o: writes the plan that `execute` runs", false, false, "pe"},
    FlagRow{"trace", "FILE", kOutput, "Perfetto trace of all phases", false, false, "s"},
    FlagRow{"timeline", "FILE", kOutput, "Timelines of all phases as JSON", false, false, "s"},
    FlagRow{"predictions", "FILE", kOutput, "every prediction as JSON", false, false, "v"},
    FlagRow{"fail-above", "S=FRACTION", kOutput, "exit 6 when median, p90 or worst error is above", true, false, "v"},
    FlagRow{"json", "", kOutput, "exactly one JSON document on stdout", false, false, "pescmhn"},
    FlagRow{"quiet", "", kOutput, "-q: no warnings on stderr", false, false, "pescvmhn"},
    FlagRow{"verbose", "", kOutput, "-v: what is read and how long it takes, on stderr", false, false, "pescvmhn"},
    FlagRow{"configs", "DIR", kOutput, "folder with models/ and hardware/ (found beside the program)", false, false, "pescvmhn"},
};

struct Alias {
  std::string_view word;
  std::string_view flag;
};
constexpr std::array kAliases{
    Alias{"num-gpus", "gpus"},
    Alias{"num-processes", "gpus"},
    Alias{"nproc-per-node", "gpus"},
    Alias{"world-size", "gpus"},
    Alias{"ngpus", "gpus"},
    Alias{"nnodes", "nodes"},
    Alias{"num-nodes", "nodes"},
    Alias{"num-machines", "nodes"},
    Alias{"max-seq-len", "seq-len"},
    Alias{"max-seq-length", "seq-len"},
    Alias{"sequence-len", "seq-len"},
    Alias{"sequence-length", "seq-len"},
    Alias{"cutoff-len", "seq-len"},
    Alias{"context-length", "seq-len"},
    Alias{"batch-size", "micro-batch"},
    Alias{"per-device-train-batch-size", "micro-batch"},
    Alias{"local-batch-size", "micro-batch"},
    Alias{"micro-batch-size", "micro-batch"},
    Alias{"global-batch-size", "global-batch"},
    Alias{"gradient-accumulation-steps", "grad-accum"},
    Alias{"mem-cap", "memory-limit"},
    Alias{"budget", "memory-limit"},
    Alias{"max-memory", "memory-limit"},
    Alias{"learning-rate", "lr"},
    Alias{"max-grad-norm", "clip-norm"},
    Alias{"warmup-steps", "warmup"},
    Alias{"max-steps", "steps"},
    Alias{"lr-scheduler-type", "schedule"},
    Alias{"out", "output"},
    Alias{"job", "workload"},
};

// Words of other tools that mean one of our flags with a value of its own, or nothing that is there.
struct Hint {
  std::string_view word;
  std::string_view answer;
};
constexpr std::array kHints{
    Hint{"dtype", "name the precision that is meant: --stored-dtype, --compute-dtype, --reduce-dtype, --state-dtype"},
    Hint{"mixed-precision", "--compute-dtype bf16 (weights stay in --stored-dtype)"},
    Hint{"bf16", "--compute-dtype bf16"},
    Hint{"fp16", "--compute-dtype bf16"},
    Hint{"buffer-dtype", "buffers are fp32; --compute-dtype sets that of activations"},
    Hint{"gradient-checkpointing", "--recompute full"},
    Hint{"activation-checkpointing", "--recompute full"},
    Hint{"sharding-strategy",
         "--shard-degree, --replicate-degree and --reshard-after-forward (FULL_SHARD is: shard degree = GPUs, all)"},
    Hint{"fsdp-offload-params", "nothing is kept on the host; --recompute and --stored-dtype bf16 save device memory"},
    Hint{"cpu-offload", "nothing is kept on the host; --recompute and --stored-dtype bf16 save device memory"},
    Hint{"offload", "nothing is kept on the host; --recompute and --stored-dtype bf16 save device memory"},
    Hint{"peft", "--train head, --train last:N or --train regex:RE trains a part of the model"},
    Hint{"peft-method", "--train head, --train last:N or --train regex:RE trains a part of the model"},
    Hint{"method", "--train head, --train last:N or --train regex:RE trains a part of the model"},
    Hint{"adapter", "--train head, --train last:N or --train regex:RE trains a part of the model"},
    Hint{"adapter-dtype", "--train head, --train last:N or --train regex:RE trains a part of the model"},
    Hint{"lora-r", "--train head, --train last:N or --train regex:RE trains a part of the model"},
    Hint{"finetuning-type", "--train last:N trains the last N layers, --freeze RE takes parameters away"},
    Hint{"base-quantization", "--stored-dtype bf16 is the smallest stored form"},
    Hint{"load-in-4bit", "--stored-dtype bf16 is the smallest stored form"},
    Hint{"load-in-8bit", "--stored-dtype bf16 is the smallest stored form"},
    Hint{"quantization", "--stored-dtype bf16 is the smallest stored form"},
    Hint{"tp", "--shard-degree and --replicate-degree are the mesh axes"},
    Hint{"tensor-parallel", "--shard-degree and --replicate-degree are the mesh axes"},
    Hint{"pp", "--shard-degree and --replicate-degree are the mesh axes"},
    Hint{"loss", "the loss is computed over full logits; --micro-batch or --seq-len makes them smaller"},
    Hint{"target", "plans are for the schedule that `execute` runs; there is nothing to choose"},
    Hint{"attention", "the attention kernel follows from device, dtype and model; there is nothing to choose"},
    Hint{"compile", "operators are forecast and run one by one; there is nothing to choose"},
    Hint{"model-code", "plans are for the operators that `execute` runs; there is nothing to choose"},
    Hint{"head", "--train head trains the language-model head that the model has"},
    Hint{"add-layers", "the model is trained as its config.json states it"},
    Hint{"vocab-size", "the vocabulary is the model's; edit vocab_size in its config.json"},
    Hint{"tokens", "--steps N is the length of the job"},
    Hint{"prices", "--objective throughput gives tokens per second, from which cost follows"},
    Hint{"dry-run", "plan simulate PLAN.json"},
    Hint{"resume", "execute PLAN.json --model RUN/final trains on from saved weights, with new optimizer states"},
};

// Verbs that other versions or tools have; no model is looked up under these words.
constexpr std::array<Hint, 5> kVerbHints{{{"capacity", "plan MODEL --gpus N says what fits; --seq-len and --micro-batch vary it"},
                                          {"sweep", "plan MODEL --gpus N --top K shows more plans"},
                                          {"compare", "plan simulate PLAN.json for each plan"},
                                          {"export", "plan MODEL -o PLAN.json writes the plan"},
                                          {"import", "plan MODEL with the flags of the set-up; plan --help lists them"}}};

std::string dashes(std::string_view word) {
  std::string result(word);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

const FlagRow* find_flag(std::string_view name) {
  const auto row = std::find_if(kFlags.begin(), kFlags.end(), [&](const FlagRow& r) { return r.name == name; });
  return row == kFlags.end() ? nullptr : &*row;
}

[[noreturn]] void unknown_flag(const std::string& written, const std::string& word, Verb verb) {
  for (const Hint& hint : kHints) {
    if (hint.word == word) throw UsageError(fmt::format("unknown flag --{}", written), "", std::string(hint.answer));
  }
  std::vector<std::string> names;
  for (const FlagRow& row : kFlags) {
    if (row.verbs.find(verb_letter(verb)) != std::string_view::npos) names.emplace_back(row.name);
  }
  std::vector<std::string> known = names;
  for (const Alias& alias : kAliases) {
    if (std::find(names.begin(), names.end(), alias.flag) != names.end()) known.emplace_back(alias.word);
  }
  std::string near = nearest(word, known);
  for (const Alias& alias : kAliases) {
    if (alias.word == near) near = alias.flag;
  }
  throw UsageError(
      fmt::format("unknown flag --{}", written), "",
      near.empty() ? fmt::format("{} --help lists the flags", verb == Verb::Plan ? "plan" : fmt::format("plan {}", verb_name(verb)))
                   : fmt::format("--{}", near));
}

// The flag's own name for every way of writing it; "--x=v" is split by the caller.
std::string canonical_flag(const std::string& written, Verb verb) {
  std::string word = dashes(written);
  for (const Alias& alias : kAliases) {
    if (alias.word == word) word = alias.flag;
  }
  const FlagRow* row = find_flag(word);
  if (row == nullptr) unknown_flag(written, word, verb);
  if (row->verbs.find(verb_letter(verb)) == std::string_view::npos) {
    std::string takes;
    for (const VerbRow& v : kVerbs) {
      if (row->verbs.find(v.letter) == std::string_view::npos) continue;
      takes += (takes.empty() ? "" : ", ") + (v.verb == Verb::Plan ? std::string("plan") : fmt::format("plan {}", v.name));
    }
    throw UsageError(fmt::format("plan {} takes no flag --{}", verb_name(verb), row->name), "",
                     fmt::format("--{} belongs to {}", row->name, takes));
  }
  return word;
}

// "--max_seq_len=4096" -> "--seq-len", "4096".
std::vector<std::string> normalised(const std::vector<std::string>& arguments, Verb verb) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--") || argument == "--" || argument == "--help" || argument == "--version") {
      result.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = canonical_flag(argument.substr(2, equals == std::string::npos ? equals : equals - 2), verb);
    const bool is_switch = find_flag(name)->value.empty();
    if (is_switch && equals != std::string::npos) {
      throw UsageError(fmt::format("--{} is a switch and takes no value, '{}' was given", name, argument.substr(equals + 1)), "",
                       fmt::format("--{}", name));
    }
    if (!is_switch && equals == std::string::npos && i + 1 == arguments.size()) {
      throw UsageError(fmt::format("--{} needs a value", name), "", fmt::format("--{} {}", name, find_flag(name)->value));
    }
    result.push_back("--" + name);
    if (is_switch) continue;
    // A value may itself start with a dash ("--freeze -x"): it is handed over joined, so that it cannot be taken for a flag.
    result.back() += "=" + (equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1));
    // Two words after --betas, as some tools write it.
    if (name == "betas" && equals == std::string::npos && result.back().find(',') == std::string::npos &&
        i + 1 < arguments.size()) {
      result.back() += "," + arguments[++i];
    }
  }
  return result;
}

struct Parser {
  CLI::App app;
  std::vector<std::string> positionals;
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, CLI::Option*> options;
};

std::unique_ptr<Parser> make_parser(const VerbRow& verb) {
  auto parser = std::make_unique<Parser>();
  CLI::App& app = parser->app;
  app.description(std::string(verb.help));
  app.name(std::string(verb.usage));
  app.set_help_flag("--help", "this text");
  if (verb.verb == Verb::Plan) app.set_version_flag("--version", "shardplan");
  app.add_option("argument", parser->positionals, "")->group("");
  for (const FlagRow& row : kFlags) {
    if (row.verbs.find(verb.letter) == std::string_view::npos) continue;
    std::string names = "--" + std::string(row.name);
    if (row.name == "output") names = "-o," + names;
    if (row.name == "quiet") names = "-q," + names;
    if (row.name == "verbose") names = "-v," + names;
    const std::string key(row.name);
    CLI::Option* option = nullptr;
    if (row.value.empty()) {
      option = app.add_flag(names)->description(std::string(row.help));
    } else {
      option = app.add_option(names, parser->values[key], std::string(row.help))->expected(1)->type_name(std::string(row.value));
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
    }
    option->group(std::string(row.group));
    parser->options[key] = option;
  }
  return parser;
}

// Which verb the first word names, and whether that word is used up by it.
std::pair<Verb, bool> verb_of(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].starts_with("-")) return {Verb::Plan, false};
  const std::string word = dashes(arguments[0]);
  for (const VerbRow& row : kVerbs) {
    if (row.name == word) return {row.verb, true};
  }
  for (const VerbAlias& alias : kVerbAliases) {
    if (alias.word == word) return {alias.verb, true};
  }
  for (const Hint& hint : kVerbHints) {
    if (hint.word == word) throw UsageError(fmt::format("'{}' is no verb of plan", arguments[0]), "", std::string(hint.answer));
  }
  return {Verb::Plan, false};
}

}  // namespace

std::string_view verb_name(Verb verb) { return row_of(verb).name; }
char verb_letter(Verb verb) { return row_of(verb).letter; }
std::span<const FlagRow> flag_table() { return kFlags; }

std::optional<std::string> CommandLine::value(const std::string& flag) const {
  const auto it = given.find(flag);
  if (it == given.end() || it->second.values.empty()) return std::nullopt;
  return it->second.values.front();
}

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine line;
  const auto [verb, uses_word] = verb_of(arguments);
  line.verb = verb;
  std::vector<std::string> rest = normalised({arguments.begin() + (uses_word ? 1 : 0), arguments.end()}, verb);
  const std::unique_ptr<Parser> parser = make_parser(row_of(verb));
  std::reverse(rest.begin(), rest.end());  // as CLI11 wants it
  try {
    parser->app.parse(rest);
  } catch (const CLI::CallForHelp&) {
    line.help = true;
    return line;
  } catch (const CLI::CallForVersion&) {
    line.version = true;
    return line;
  } catch (const CLI::ParseError& problem) {
    throw UsageError(
        problem.what(), "",
        fmt::format("{}--help lists the flags", verb == Verb::Plan ? "plan " : fmt::format("plan {} ", verb_name(verb))));
  }
  line.positionals = parser->positionals;
  for (const auto& [name, option] : parser->options) {
    if (option->count() == 0) continue;
    const FlagRow& row = *find_flag(name);
    Given given{.values = parser->values[name], .where = "--" + name};
    if (!row.value.empty() && !row.repeats && given.values.size() > 1) {
      throw UsageError(fmt::format("--{} is given {} times", name, given.values.size()), "", "give it once");
    }
    line.given[name] = std::move(given);
  }
  return line;
}

std::string help_text(Verb verb) {
  const std::unique_ptr<Parser> parser = make_parser(row_of(verb));
  std::string text = fmt::format("usage: {}\n\n{}\n", row_of(verb).usage, row_of(verb).help);
  if (verb == Verb::Plan) {
    text += "\nVerbs:\n";
    for (const VerbRow& row : kVerbs) {
      if (row.verb != Verb::Plan) text += fmt::format("  {:<12}{}\n", row.name, row.help);
    }
  }
  std::string_view group;
  for (const FlagRow& row : kFlags) {
    if (row.verbs.find(verb_letter(verb)) == std::string_view::npos) continue;
    if (row.group != group) text += fmt::format("\n{}:\n", group = row.group);
    const std::string left = fmt::format("--{}{}{}", row.name, row.value.empty() ? "" : " ", row.value);
    text += fmt::format("  {:<28}{}{}\n", left, left.size() > 27 ? " " : "", row.help);
  }
  text += verb == Verb::Plan ? "\nExit codes: 0 ok, 1 run-time failure, 2 usage, 3 no plan fits, 4 bad input file.\n" : "";
  return text;
}

}  // namespace shardplan
