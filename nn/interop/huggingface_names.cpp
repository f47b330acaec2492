#include "nn/interop/huggingface_names.h"

#include <algorithm>
#include <cctype>

namespace sherd::nn {

namespace {

constexpr std::string_view kHole = "{}";

// GPT-2's linears are "Conv1D": [in, out], and one packs queries, keys and values.
constexpr NameRule kGptRules[] = {
    {"transformer.wte.weight", {"tok.weight"}},
    {"transformer.wpe.weight", {"pos.weight"}},
    {"transformer.h.{}.ln_1.weight", {"blocks.{}.attn_norm.weight"}},
    {"transformer.h.{}.ln_1.bias", {"blocks.{}.attn_norm.bias"}},
    {"transformer.h.{}.attn.c_attn.weight",
     {"blocks.{}.attn.wq.weight", "blocks.{}.attn.wk.weight", "blocks.{}.attn.wv.weight"},
     true},
    {"transformer.h.{}.attn.c_attn.bias",
     {"blocks.{}.attn.wq.bias", "blocks.{}.attn.wk.bias", "blocks.{}.attn.wv.bias"}},
    {"transformer.h.{}.attn.c_proj.weight", {"blocks.{}.attn.wo.weight"}, true},
    {"transformer.h.{}.attn.c_proj.bias", {"blocks.{}.attn.wo.bias"}},
    {"transformer.h.{}.ln_2.weight", {"blocks.{}.mlp_norm.weight"}},
    {"transformer.h.{}.ln_2.bias", {"blocks.{}.mlp_norm.bias"}},
    {"transformer.h.{}.mlp.c_fc.weight", {"blocks.{}.mlp.up.weight"}, true},
    {"transformer.h.{}.mlp.c_fc.bias", {"blocks.{}.mlp.up.bias"}},
    {"transformer.h.{}.mlp.c_proj.weight", {"blocks.{}.mlp.down.weight"}, true},
    {"transformer.h.{}.mlp.c_proj.bias", {"blocks.{}.mlp.down.bias"}},
    {"transformer.ln_f.weight", {"norm.weight"}},
    {"transformer.ln_f.bias", {"norm.bias"}},
};
constexpr std::string_view kGptIgnored[] = {"transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"};

// Llama's rotary halves are laid out as ours (pairs i, i + K/2), so that queries and keys need no permutation.
constexpr NameRule kLlamaRules[] = {
    {"model.embed_tokens.weight", {"tok.weight"}},
    {"model.layers.{}.input_layernorm.weight", {"blocks.{}.attn_norm.weight"}},
    {"model.layers.{}.self_attn.q_proj.weight", {"blocks.{}.attn.wq.weight"}},
    {"model.layers.{}.self_attn.k_proj.weight", {"blocks.{}.attn.wk.weight"}},
    {"model.layers.{}.self_attn.v_proj.weight", {"blocks.{}.attn.wv.weight"}},
    {"model.layers.{}.self_attn.o_proj.weight", {"blocks.{}.attn.wo.weight"}},
    {"model.layers.{}.post_attention_layernorm.weight", {"blocks.{}.mlp_norm.weight"}},
    {"model.layers.{}.mlp.gate_proj.weight", {"blocks.{}.mlp.w1.weight"}},
    {"model.layers.{}.mlp.up_proj.weight", {"blocks.{}.mlp.w3.weight"}},
    {"model.layers.{}.mlp.down_proj.weight", {"blocks.{}.mlp.w2.weight"}},
    {"model.norm.weight", {"norm.weight"}},
};
constexpr std::string_view kLlamaIgnored[] = {"model.layers.{}.self_attn.rotary_emb.inv_freq"};

constexpr NameRule kHead = {"lm_head.weight", {"head.weight"}};
constexpr NameTable kGptTable = {"transformer.", kGptRules, kHead, kGptIgnored};
constexpr NameTable kLlamaTable = {"model.", kLlamaRules, kHead, kLlamaIgnored};

const NameTable& table_of(const Gpt::Config&) { return kGptTable; }
const NameTable& table_of(const Llama::Config&) { return kLlamaTable; }

}  // namespace

const NameTable& name_table(const LanguageModelConfig& config) {
  return std::visit([](const auto& c) -> const NameTable& { return table_of(c); }, config);
}

std::string name_in_block(std::string_view pattern, std::int64_t block) {
  std::string name(pattern);
  if (const std::size_t hole = name.find(kHole); hole != name.npos)
    name.replace(hole, kHole.size(), std::to_string(block));
  return name;
}

bool matches_pattern(std::string_view name, std::string_view pattern) {
  const std::size_t hole = pattern.find(kHole);
  if (hole == pattern.npos) return name == pattern;
  const std::string_view before = pattern.substr(0, hole), after = pattern.substr(hole + kHole.size());
  if (!name.starts_with(before) || !name.ends_with(after) || name.size() <= before.size() + after.size()) return false;
  const std::string_view number = name.substr(before.size(), name.size() - before.size() - after.size());
  return std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c); });
}

bool is_per_block(const NameRule& rule) { return rule.theirs.find(kHole) != rule.theirs.npos; }

}  // namespace sherd::nn
