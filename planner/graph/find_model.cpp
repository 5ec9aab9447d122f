#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/names.h"
#include "planner/graph/model_spec.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

FoundModel from_file(const fs::path& file, const std::string& name, const fs::path& directory) {
  return {model_from_json(json_from_file(file), file.string(), name), directory};
}

// "~" and "$NAME" as the shell has them; an unset variable is empty.
std::string expanded(const std::string& text) {
  const auto variable = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (i == 0 && text[i] == '~' && (text.size() == 1 || text[1] == '/')) {
      result += variable("HOME");
      ++i;
    } else if (text[i] == '$') {
      const bool braced = i + 1 < text.size() && text[i + 1] == '{';
      std::size_t end = i + (braced ? 2 : 1);
      const std::size_t start = end;
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
      result += variable(text.substr(start, end - start));
      i = braced && end < text.size() ? end + 1 : end;
    } else {
      result += text[i++];
    }
  }
  return result;
}

fs::path hub_cache() {
  for (const auto& [name, below] : {std::pair{"HF_HUB_CACHE", ""}, std::pair{"HUGGINGFACE_HUB_CACHE", ""},
                                    std::pair{"HF_HOME", "hub"}, std::pair{"XDG_CACHE_HOME", "huggingface/hub"}}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return fs::path(expanded(value)) / below;
  }
  return fs::path(expanded("~/.cache/huggingface/hub"));
}

struct HubId {
  std::string repository;  // "ORG/NAME" or "NAME"
  std::string revision = "main";
};

HubId hub_id_from(const std::string& model) {
  const std::size_t at = model.rfind('@');
  if (at == std::string::npos) return {model};
  return {model.substr(0, at), model.substr(at + 1)};
}

bool looks_like_hub_id(const std::string& repository) {
  const auto slashes = std::count(repository.begin(), repository.end(), '/');
  const bool plain = std::all_of(repository.begin(), repository.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
  });
  return plain && slashes <= 1 && !repository.empty() && repository.front() != '/' && repository.back() != '/' &&
         repository.front() != '.';
}

// models--ORG--NAME/refs/REVISION names the commit; a revision may be a commit itself.
fs::path hub_snapshot(const HubId& id) {
  std::string folder = "models--";
  for (const char c : id.repository) folder += c == '/' ? std::string("--") : std::string(1, c);
  const fs::path repository = hub_cache() / folder;
  std::string commit = id.revision;
  if (std::ifstream ref(repository / "refs" / id.revision); ref) ref >> commit;
  return repository / "snapshots" / commit;
}

// The hub id that a file of configs/models names.
std::string published_as(const fs::path& file) {
  const nlohmann::ordered_json config = json_from_file(file);
  const auto name = config.find("_name_or_path");
  return name != config.end() && name->is_string() ? letters_and_digits(name->get<std::string>()) : std::string();
}

// Insertions, removals and exchanges of letters that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t exchanged = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// By the share of letters that differ; the number of them alone would prefer short names over the right family.
std::vector<std::string> nearest_aliases(const std::string& model, const std::vector<std::string>& aliases) {
  const std::size_t slash = model.rfind('/');
  const std::string word = letters_and_digits(slash == std::string::npos ? model : model.substr(slash + 1));
  struct Near {
    double share = 0;
    std::string alias;
  };
  std::vector<Near> all;
  for (const std::string& alias : aliases) {
    const std::string other = letters_and_digits(alias);
    const std::size_t longer = std::max({word.size(), other.size(), std::size_t{1}});
    all.push_back({static_cast<double>(edit_distance(word, other)) / static_cast<double>(longer), alias});
  }
  std::stable_sort(all.begin(), all.end(), [](const Near& a, const Near& b) { return a.share < b.share; });
  std::vector<std::string> result;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 3); ++i) result.push_back(all[i].alias);
  return result;
}

}  // namespace

std::vector<std::string> model_aliases(const std::filesystem::path& model_configs) {
  std::vector<std::string> aliases;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(model_configs, error)) {
    if (entry.path().extension() == ".json") aliases.push_back(entry.path().stem().string());
  }
  std::sort(aliases.begin(), aliases.end());
  return aliases;
}

FoundModel find_model(const std::string& model, const std::filesystem::path& model_configs) {
  if (model.empty()) throw UsageError("no model is named", "--model", "an alias, a directory, a config.json or a hub id");
  const fs::path path = expanded(model);
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const fs::path file = path / "config.json";
    if (!fs::exists(file, error))
      throw UsageError(fmt::format("the directory {} holds no config.json", path.string()), "--model",
                       "a directory in Hugging Face layout");
    fs::path name = path.filename().empty() ? path.parent_path().filename() : path.filename();
    return from_file(file, name.string(), path);
  }
  if (fs::is_regular_file(path, error)) {
    const bool is_config = path.filename() == "config.json";
    const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    return from_file(path, is_config ? fs::absolute(directory).lexically_normal().filename().string() : path.stem().string(),
                     is_config ? directory : fs::path());
  }
  const std::vector<std::string> aliases = model_aliases(model_configs);
  for (const std::string& alias : aliases) {
    if (letters_and_digits(alias) == letters_and_digits(model)) return from_file(model_configs / (alias + ".json"), alias, {});
  }
  const HubId id = hub_id_from(model);
  const bool may_be_hub_id = looks_like_hub_id(id.repository);
  std::string tried = fmt::format("{} (file or directory); the aliases of {}", path.string(), model_configs.string());
  if (may_be_hub_id) {
    const fs::path snapshot = hub_snapshot(id);
    if (fs::exists(snapshot / "config.json", error)) {
      const std::size_t slash = id.repository.rfind('/');
      return from_file(snapshot / "config.json", slash == std::string::npos ? id.repository : id.repository.substr(slash + 1),
                       snapshot);
    }
    tried += fmt::format("; {}", (snapshot / "config.json").string());
  }
  // Facts of a published checkpoint that is not here: enough to plan.
  for (const std::string& alias : aliases) {
    const fs::path file = model_configs / (alias + ".json");
    if (may_be_hub_id && published_as(file) == letters_and_digits(id.repository)) return from_file(file, alias, {});
  }
  std::string remedy;
  const std::vector<std::string> near = nearest_aliases(model, aliases);
  if (!near.empty()) remedy = fmt::format("{}", fmt::join(near, ", "));
  if (may_be_hub_id && id.repository.find('/') != std::string::npos) {
    remedy += fmt::format("{}hf download {}{}", remedy.empty() ? "" : "; or: ", id.repository,
                          id.revision == "main" ? "" : " --revision " + id.revision);
  }
  throw UsageError(fmt::format("no model \"{}\"; tried {}", model, tried), "--model", remedy);
}

}  // namespace shardplan
