#pragma once
// How the tensors of a Hugging Face model are called and laid out there, as data: one table per architecture, read by
// loading and saving alike.
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/models/model_config.h"

namespace sherd::nn {

/// One of their tensors: some of ours, stacked along dim 0; stored transposed if `transposed` ([in, out]). "{}" stands
/// for the number of the block.
struct NameRule {
  std::string_view theirs;
  std::array<std::string_view, 3> ours;  ///< unused ones are empty
  bool transposed = false;
};

/// What a tied head shares, by our name.
inline constexpr std::string_view kEmbedding = "tok.weight";

struct NameTable {
  /// Files saved from the model without its head leave this out of all names that start with it.
  std::string_view prefix;
  std::span<const NameRule> rules;
  /// The output head; a model with a tied head has the tensor only in some files.
  NameRule head;
  /// Tensors that hold no weights (masks, frequencies): nothing reads them.
  std::span<const std::string_view> ignored;
};

const NameTable& name_table(const LanguageModelConfig& config);

/// `pattern` with `block` in place of "{}".
std::string name_in_block(std::string_view pattern, std::int64_t block);
/// Whether `name` is `pattern` with some block number.
bool matches_pattern(std::string_view name, std::string_view pattern);
bool is_per_block(const NameRule& rule);

}  // namespace sherd::nn
