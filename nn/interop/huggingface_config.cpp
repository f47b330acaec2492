// Keys are rows of a table per architecture, read and written by the same rows: key, member, whether transformers has a
// default. A second table holds the keys whose value must be the one our models compute.
#include "nn/interop/huggingface_config.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/bounded_json.h"
#include "runtime/tensor/error.h"

namespace sherd::nn {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <class C>
using Member = std::variant<std::int64_t C::*, double C::*, bool C::*>;

/// A null or missing optional key leaves the member as it is: at the default of transformers.
template <class C>
struct Key {
  const char* name;
  Member<C> member;
  bool required = false;
};

constexpr Key<Gpt::Config> kGptKeys[] = {
    {"vocab_size", &Gpt::Config::vocabulary, true}, {"n_positions", &Gpt::Config::tokens, true},
    {"n_embd", &Gpt::Config::width, true},          {"n_layer", &Gpt::Config::layers, true},
    {"n_head", &Gpt::Config::heads, true},          {"n_inner", &Gpt::Config::hidden},
    {"layer_norm_epsilon", &Gpt::Config::norm_eps}, {"tie_word_embeddings", &Gpt::Config::tied_head}};

constexpr Key<Llama::Config> kLlamaKeys[] = {
    {"vocab_size", &Llama::Config::vocabulary, true},     {"max_position_embeddings", &Llama::Config::tokens, true},
    {"hidden_size", &Llama::Config::width, true},         {"num_hidden_layers", &Llama::Config::layers, true},
    {"num_attention_heads", &Llama::Config::heads, true}, {"num_key_value_heads", &Llama::Config::kv_heads},
    {"intermediate_size", &Llama::Config::hidden, true},  {"rope_theta", &Llama::Config::rope_theta},
    {"rms_norm_eps", &Llama::Config::norm_eps},           {"tie_word_embeddings", &Llama::Config::tied_head}};

/// The only value that our models compute.
struct Fixed {
  const char* name;
  bool value;
};
constexpr std::array kGptFixed = {Fixed{"scale_attn_weights", true}, Fixed{"scale_attn_by_inverse_layer_idx", false},
                                  Fixed{"add_cross_attention", false}};
constexpr std::array kLlamaFixed = {Fixed{"attention_bias", false}, Fixed{"mlp_bias", false},
                                    Fixed{"rope_interleaved", false}};

struct Activation {
  const char* name;
  bool tanh_gelu;
};
// The first of a kind is the one that is written.
constexpr std::array kActivations = {Activation{"gelu_new", true}, Activation{"gelu", false},
                                     Activation{"gelu_pytorch_tanh", true}};

constexpr const char* kGptName = "GPT2LMHeadModel";
constexpr const char* kLlamaName = "LlamaForCausalLM";

const char* name_of(const Gpt::Config&) { return kGptName; }
const char* name_of(const Llama::Config&) { return kLlamaName; }

/// nullptr for a key that is missing or null.
const json* find(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

void read_value(const json& value, const char* key, std::int64_t& out) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // keeps products of two sizes far from overflow
  check(value.is_number_integer() && value >= 1 && value <= kMost, "\"{}\" is {}, not an integer in 1..{}", key,
        ckpt::shown(value), kMost);
  out = value.get<std::int64_t>();
}
void read_value(const json& value, const char* key, double& out) {
  check(value.is_number() && value.get<double>() > 0, "\"{}\" is {}, not a positive number", key, ckpt::shown(value));
  out = value.get<double>();
}
void read_value(const json& value, const char* key, bool& out) {
  check(value.is_boolean(), "\"{}\" is {}, neither true nor false", key, ckpt::shown(value));
  out = value.get<bool>();
}

template <class C>
void read_keys(const json& object, std::span<const Key<C>> keys, C& config) {
  for (const Key<C>& key : keys) {
    const json* value = find(object, key.name);
    check(value || !key.required, "\"{}\" is missing", key.name);
    if (value) std::visit([&](auto member) { read_value(*value, key.name, config.*member); }, key.member);
  }
}

void check_fixed(const json& object, std::span<const Fixed> keys) {
  for (const Fixed& key : keys)
    if (const json* value = find(object, key.name))
      check(*value == key.value, "\"{}\" is {}; only {} is supported", key.name, ckpt::shown(*value), key.value);
}

void check_heads(const char* key, std::int64_t heads, const char* by_key, std::int64_t by) {
  check(heads % by == 0, "\"{}\" = {} is no multiple of \"{}\" = {}", key, heads, by_key, by);
}

/// "rope_scaling" (transformers 4) or "rope_parameters" (5), which may also hold the base.
void read_rope(const json& object, Llama::Config& config) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* rope = find(object, name);
    if (!rope) continue;
    check(rope->is_object(), "\"{}\" is {}, not an object", name, ckpt::shown(*rope));
    for (const char* kind : {"rope_type", "type"})
      if (const json* value = find(*rope, kind))
        check(*value == "default", "\"{}\" has the {} {}; only unscaled rotary positions (\"default\") are supported",
              name, kind, ckpt::shown(*value));
    if (const json* theta = find(*rope, "rope_theta")) read_value(*theta, "rope_theta", config.rope_theta);
    if (const json* part = find(*rope, "partial_rotary_factor"))
      check(*part == 1, "\"partial_rotary_factor\" is {}; only 1 is supported", ckpt::shown(*part));
  }
}

/// One that is not small beside a variance of 1 leaves nothing of what is normalised.
void check_eps(std::string_view key, double eps) {
  check(eps > 0 && eps <= 1, "\"{}\" is {}; it must be above 0 and at most 1", key, eps);
}

Gpt::Config read_gpt(const json& object) {
  Gpt::Config config;
  config.tanh_gelu = true;
  read_keys<Gpt::Config>(object, kGptKeys, config);
  check_fixed(object, kGptFixed);
  check_eps("layer_norm_epsilon", config.norm_eps);
  check_heads("n_embd", config.width, "n_head", config.heads);
  if (config.hidden == 0) config.hidden = 4 * config.width;
  if (const json* value = find(object, "activation_function")) {
    std::vector<std::string> names;
    for (const Activation& known : kActivations) {
      names.emplace_back(known.name);
      if (*value == known.name) config.tanh_gelu = known.tanh_gelu;
    }
    check(std::find(names.begin(), names.end(), *value) != names.end(),
          "\"activation_function\" is {}; supported are {}", ckpt::shown(*value), fmt::join(names, ", "));
  }
  return config;
}

Llama::Config read_llama(const json& object) {
  Llama::Config config;
  config.norm_eps = 1e-6;
  read_keys<Llama::Config>(object, kLlamaKeys, config);
  check_fixed(object, kLlamaFixed);
  check_eps("rms_norm_eps", config.norm_eps);
  read_rope(object, config);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  check_heads("hidden_size", config.width, "num_attention_heads", config.heads);
  check_heads("num_attention_heads", config.heads, "num_key_value_heads", config.kv_heads);
  if (const json* value = find(object, "head_dim"))
    check(*value == config.width / config.heads,
          "\"head_dim\" is {}; only hidden_size / num_attention_heads = {} is "
          "supported",
          ckpt::shown(*value), config.width / config.heads);
  if (const json* value = find(object, "hidden_act"))
    check(*value == "silu" || *value == "swish", "\"hidden_act\" is {}; supported is \"silu\"", ckpt::shown(*value));
  return config;
}

/// From "architectures", or where it is missing from "model_type".
std::string architecture(const json& object) {
  if (const json* list = find(object, "architectures")) {
    check(list->is_array() && list->size() == 1 && (*list)[0].is_string(),
          "\"architectures\" is {}, not a list of one name", ckpt::shown(*list));
    return (*list)[0].get<std::string>();
  }
  const json* type = find(object, "model_type");
  check(type != nullptr, "it has neither \"architectures\" nor \"model_type\"");
  if (*type == "gpt2") return kGptName;
  return *type == "llama" ? kLlamaName : ckpt::shown(*type);
}

template <class C>
void write_keys(std::span<const Key<C>> keys, const C& config, ordered_json& object) {
  for (const Key<C>& key : keys) std::visit([&](auto member) { object[key.name] = config.*member; }, key.member);
}
void write_fixed(std::span<const Fixed> keys, ordered_json& object) {
  for (const Fixed& key : keys) object[key.name] = key.value;
}

ordered_json to_json(const Gpt::Config& config) {
  ordered_json object = {{"architectures", ordered_json::array({kGptName})}, {"model_type", "gpt2"}};
  write_keys<Gpt::Config>(kGptKeys, config, object);
  if (config.hidden == 0) object["n_inner"] = 4 * config.width;
  write_fixed(kGptFixed, object);
  for (const Activation& known : kActivations)
    if (known.tanh_gelu == config.tanh_gelu && !object.contains("activation_function"))
      object["activation_function"] = known.name;
  return object;
}

ordered_json to_json(const Llama::Config& config) {
  ordered_json object = {{"architectures", ordered_json::array({kLlamaName})}, {"model_type", "llama"}};
  write_keys<Llama::Config>(kLlamaKeys, config, object);
  if (config.kv_heads == 0) object["num_key_value_heads"] = config.heads;
  write_fixed(kLlamaFixed, object);
  object["head_dim"] = config.width / config.heads;
  object["hidden_act"] = "silu";
  return object;
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    default: fail("weights of Hugging Face models are f32, bf16 or f16, not {}", name(dtype));
  }
}

}  // namespace

LanguageModelConfig config_from_huggingface(std::string_view text) {
  const json object = ckpt::parse_bounded_json(text);
  check(object.is_object(), "it is not a JSON object");
  check(!find(object, "quantization_config"),
        "\"quantization_config\" is there; only unquantised weights are supported");
  const std::string name = architecture(object);
  if (name == kGptName) return read_gpt(object);
  if (name == kLlamaName) return read_llama(object);
  fail("the architecture is {}; supported are {} and {}", name, kGptName, kLlamaName);
}

std::string_view huggingface_architecture(const LanguageModelConfig& config) {
  return std::visit([](const auto& c) -> std::string_view { return name_of(c); }, config);
}

std::string config_to_huggingface(const LanguageModelConfig& config, DType dtype) {
  ordered_json object = std::visit([](const auto& c) { return to_json(c); }, config);
  object["torch_dtype"] = torch_name(dtype);
  return object.dump(2) + "\n";
}

}  // namespace sherd::nn
