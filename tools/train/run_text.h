#pragma once
// The text of a run, and what its tokens mean to the model: the data's bytes or characters, or what a save says.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nn/data/token_data.h"
#include "runtime/op/core/tensor.h"
#include "tools/train/config.h"
#include "tools/train/weights.h"

namespace sherd::train {

/// Opens the files at `path`. Error for a file that is no text (nn/data/not_text.h), unless `vocabulary` is "bytes",
/// asked for by hand.
TextFiles open_text(const std::string& path, std::string_view vocabulary);
/// Opens the text of config.data as the tokens that `initial` has learnt, where its save tells which; else as
/// config.vocabulary says, for which "auto" is bytes. Error if that would give the tokens of `initial` another meaning:
/// its save has another vocabulary; or it does not tell, knows another number of tokens, and nobody has chosen a
/// vocabulary.
TokenData open_run_text(const TrainConfig& config, const Weights* initial = nullptr);

/// Inputs and targets, i32 [count, sequence], of windows of sequence + 1 tokens: `read` fills the i-th, which is 0.
std::pair<Tensor, Tensor> read_windows(std::int64_t count, std::int64_t sequence,
                                       const std::function<void(std::int64_t i, std::span<std::int32_t> window)>& read);

/// "ids 0..255 are the text's bytes, the model knows 49152"; empty where model.vocabulary is left to the data.
std::string meaning_of_ids(const TrainConfig::Model& model, const Vocabulary& vocabulary);

}  // namespace sherd::train
