#pragma once
// What `sherd eval` lets a model predict: sequences of token ids from a file, or the windows of a text.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "runtime/op/core/tensor.h"
#include "tools/train/weights.h"

namespace sherd {

/// Batches of sequences, the same on any number of ranks.
struct EvalInput {
  std::int64_t batches = 0;
  Shape shape{};  ///< [sequences, tokens] of all batches together
  /// Tokens [B, T] of a batch, and what follows each of them; -100 if nothing does. On the host.
  std::function<std::pair<Tensor, Tensor>(std::int64_t batch)> at{};
  std::string over{};  ///< " over ...", where the loss is not over all tokens; else empty
};

/// `tokens`, i64 [sequences, tokens], of a safetensors file: a sequence is a batch, and its last token has no target.
/// Error naming --tokens, the file and what does not fit the model.
EvalInput token_file(const std::string& path, const train::Weights& weights);

/// All of a text, in windows of the length that the model was trained on, adjacent as those of a validation; a
/// remainder that does not fill one is left out, and a text shorter than a window is one. `vocabulary` is what was
/// asked for by hand, or "auto". Error if the weights do not tell what their tokens stand for, for other text than
/// that, and for files that are no text.
EvalInput text_windows(const std::string& path, const train::Weights& weights, const std::string& vocabulary);

}  // namespace sherd
