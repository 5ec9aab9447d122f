#include "planner/graph/models/model_family.h"

#include <array>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::string_view kLayerNorm = "LayerNorm", kExperts = "routed experts";

constexpr std::array<ModelFamily, 27> kFamilies = {{
    {"llama", Family::Llama, "Llama", true, "", read_llama, list_llama},
    {"mistral", Family::Mistral, "Mistral", true, "", read_mistral, list_llama},
    {"mixtral", Family::Mixtral, "Mixtral", true, kExperts, read_mixtral, list_mixtral},
    {"qwen2", Family::Qwen2, "Qwen2", true, "", read_qwen2, list_llama},
    {"qwen2_moe", Family::Qwen2Moe, "Qwen2Moe", true, kExperts, read_qwen2_moe, list_qwen2_moe},
    {"qwen3", Family::Qwen3, "Qwen3", true, "", read_qwen3, list_llama},
    {"qwen3_moe", Family::Qwen3Moe, "Qwen3Moe", true, kExperts, read_qwen3_moe, list_qwen3_moe},
    {"deepseek_v2", Family::DeepseekV2, "DeepseekV2", true, "attention through low-rank factors, routed experts", read_deepseek_v2,
     list_deepseek},
    {"deepseek_v3", Family::DeepseekV3, "DeepseekV3", true, "attention through low-rank factors, routed experts", read_deepseek_v3,
     list_deepseek},
    {"gemma", Family::Gemma, "Gemma", true, "norms that multiply by 1 + weight", read_gemma, list_gemma},
    {"gemma2", Family::Gemma2, "Gemma2", true, "norms that multiply by 1 + weight, capped scores", read_gemma2, list_gemma},
    {"gemma3", Family::Gemma3, "Gemma3", true, "norms that multiply by 1 + weight", read_gemma3, list_gemma},
    {"gemma3_text", Family::Gemma3, "Gemma3", true, "norms that multiply by 1 + weight", read_gemma3, list_gemma},
    {"phi", Family::Phi, "Phi", true, kLayerNorm, read_phi, list_phi},
    {"phi3", Family::Phi3, "Phi3", true, "one matrix for queries, keys and values", read_phi3, list_phi3},
    {"gpt2", Family::Gpt2, "GPT2", true, "LayerNorm, learned positions", read_gpt2, list_gpt2},
    {"gpt_neox", Family::GptNeox, "GPTNeoX", true, kLayerNorm, read_gpt_neox, list_gpt_neox},
    {"gptj", Family::Gptj, "GPTJ", true, kLayerNorm, read_gptj, list_gptj},
    {"opt", Family::Opt, "OPT", true, "LayerNorm, learned positions", read_opt, list_opt},
    {"falcon", Family::Falcon, "Falcon", true, kLayerNorm, read_falcon, list_falcon},
    {"bloom", Family::Bloom, "Bloom", true, "LayerNorm, scores that fall with distance", read_bloom, list_bloom},
    {"mpt", Family::Mpt, "Mpt", true, "LayerNorm, scores that fall with distance", read_mpt, list_mpt},
    {"starcoder2", Family::Starcoder2, "Starcoder2", true, kLayerNorm, read_starcoder2, list_starcoder2},
    {"olmo2", Family::Olmo2, "Olmo2", true, "norms behind attention and MLP", read_olmo2, list_olmo2},
    {"granite", Family::Granite, "Granite", false, "factors of embedding, residuals and logits", read_granite, list_llama},
    {"cohere", Family::Cohere, "Cohere", false, kLayerNorm, read_cohere, list_cohere},
    {"stablelm", Family::StableLm, "StableLm", true, kLayerNorm, read_stablelm, list_stablelm},
}};

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

const ModelFamily& family_of(const ModelSpec& model) {
  for (const ModelFamily& family : kFamilies) {
    if (family.model_type == model.model_type) return family;
  }
  CHECK(false, "a model is of a known family");
}

}  // namespace shardplan
