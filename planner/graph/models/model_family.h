// Every model_type that is known: how its config is read and which tensors it has. One file per family beside this one.
//
// Source: configuration and modelling classes of transformers 5.24; names as in published checkpoint files.
#pragma once

#include <span>
#include <string_view>

#include "core/json_reader.h"
#include "planner/graph/model_spec.h"
#include "planner/graph/models/table_writer.h"

namespace shardplan {

struct ModelFamily {
  std::string_view model_type;
  Family family;
  std::string_view class_prefix;  // of the published classes: "Gemma2" in Gemma2ForCausalLM
  bool has_classification;        // is there a published class with a classification head?
  std::string_view missing;       // what the graph builders lack for it; empty: it can be planned
  void (*read)(JsonReader&, ModelSpec&);
  void (*list)(TableWriter&, const ModelSpec&);
};

[[nodiscard]] std::span<const ModelFamily> model_families();
[[nodiscard]] const ModelFamily& family_of(const ModelSpec& model);

// The two halves of each family.
void read_llama(JsonReader& reader, ModelSpec& model);
void read_mistral(JsonReader& reader, ModelSpec& model);
void read_qwen2(JsonReader& reader, ModelSpec& model);
void read_qwen3(JsonReader& reader, ModelSpec& model);
void list_llama(TableWriter& table, const ModelSpec& model);  // of all four
void read_granite(JsonReader& reader, ModelSpec& model);      // tensors as llama
void read_mixtral(JsonReader& reader, ModelSpec& model);
void list_mixtral(TableWriter& table, const ModelSpec& model);
void read_qwen2_moe(JsonReader& reader, ModelSpec& model);
void list_qwen2_moe(TableWriter& table, const ModelSpec& model);
void read_qwen3_moe(JsonReader& reader, ModelSpec& model);
void list_qwen3_moe(TableWriter& table, const ModelSpec& model);
void read_deepseek_v2(JsonReader& reader, ModelSpec& model);
void read_deepseek_v3(JsonReader& reader, ModelSpec& model);
void list_deepseek(TableWriter& table, const ModelSpec& model);  // of both
void read_gemma(JsonReader& reader, ModelSpec& model);
void read_gemma2(JsonReader& reader, ModelSpec& model);
void read_gemma3(JsonReader& reader, ModelSpec& model);
void list_gemma(TableWriter& table, const ModelSpec& model);  // of all three
void read_phi(JsonReader& reader, ModelSpec& model);
void list_phi(TableWriter& table, const ModelSpec& model);
void read_phi3(JsonReader& reader, ModelSpec& model);
void list_phi3(TableWriter& table, const ModelSpec& model);
void read_gpt2(JsonReader& reader, ModelSpec& model);
void list_gpt2(TableWriter& table, const ModelSpec& model);
void read_gpt_neox(JsonReader& reader, ModelSpec& model);
void list_gpt_neox(TableWriter& table, const ModelSpec& model);
void read_gptj(JsonReader& reader, ModelSpec& model);
void list_gptj(TableWriter& table, const ModelSpec& model);
void read_opt(JsonReader& reader, ModelSpec& model);
void list_opt(TableWriter& table, const ModelSpec& model);
void read_falcon(JsonReader& reader, ModelSpec& model);
void list_falcon(TableWriter& table, const ModelSpec& model);
void read_bloom(JsonReader& reader, ModelSpec& model);
void list_bloom(TableWriter& table, const ModelSpec& model);
void read_mpt(JsonReader& reader, ModelSpec& model);
void list_mpt(TableWriter& table, const ModelSpec& model);
void read_starcoder2(JsonReader& reader, ModelSpec& model);
void list_starcoder2(TableWriter& table, const ModelSpec& model);
void read_olmo2(JsonReader& reader, ModelSpec& model);
void list_olmo2(TableWriter& table, const ModelSpec& model);
void read_cohere(JsonReader& reader, ModelSpec& model);
void list_cohere(TableWriter& table, const ModelSpec& model);
void read_stablelm(JsonReader& reader, ModelSpec& model);
void list_stablelm(TableWriter& table, const ModelSpec& model);

}  // namespace shardplan
