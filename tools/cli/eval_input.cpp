#include "tools/cli/eval_input.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "nn/checkpoint/format/safetensors.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/error.h"
#include "tools/train/run_text.h"

namespace sherd {

using namespace train;

namespace {

/// The size of a batch of windows: enough that a forward has work for all threads, and little memory.
constexpr std::int64_t kTokensInBatch = 4096;

ckpt::SafetensorsFile open_tokens(const std::string& path) {
  try {
    return ckpt::SafetensorsFile::open(path);
  } catch (const Error& error) {
    const std::string_view message = error.message();
    if (message.find("is not a safetensors file") == message.npos) throw;
    fail("--tokens wants token ids, and --data a text: {}", message);
  }
}

/// [B, T] of the file, checked against the model.
Tensor read_tokens(const std::string& path, const TrainConfig::Model& model) {
  const ckpt::SafetensorsFile file = open_tokens(path);
  const ckpt::TensorEntry& entry = file.at("tokens");
  check(entry.dtype == DType::i64 && entry.shape.size() == 2, "\"{}\": \"tokens\" is {}{}, not i64 [sequences, tokens]",
        path, name(entry.dtype), to_string(entry.shape));
  const std::int64_t sequences = entry.shape[0], length = entry.shape[1];
  check(sequences > 0 && length > 1, "\"{}\": \"tokens\" is {}; a loss needs a sequence of two tokens or more", path,
        to_string(entry.shape));
  check(length <= model.positions, "\"{}\": sequences of {} tokens, the model takes {}", path, length, model.positions);
  Tensor tokens = Tensor::empty(entry.shape, DType::i64);
  file.read(entry, 0, {static_cast<std::byte*>(tokens.raw()), static_cast<std::size_t>(tokens.bytes())});
  const std::int64_t* values = tokens.data<std::int64_t>();
  const auto bad =
      std::find_if(values, values + tokens.numel(), [&](std::int64_t t) { return t < 0 || t >= model.vocabulary; });
  check(bad == values + tokens.numel(), "\"{}\": token {} of sequence {} is {}, the model has {} tokens", path,
        (bad - values) % length, (bad - values) / length, bad == values + tokens.numel() ? 0 : *bad, model.vocabulary);
  return tokens;
}

/// tokens [1, T] -> what follows each; the last has no target.
Tensor next_tokens(const Tensor& tokens) {
  Tensor targets = Tensor::empty(tokens.shape(), DType::i64);
  const std::int64_t* from = tokens.data<std::int64_t>();
  std::copy(from + 1, from + tokens.numel(), targets.mutable_data<std::int64_t>());
  targets.mutable_data<std::int64_t>()[tokens.numel() - 1] = -100;
  return targets;
}

}  // namespace

EvalInput token_file(const std::string& path, const Weights& weights) {
  const Tensor tokens = read_tokens(path, weights.model());
  return {.batches = tokens.size(0), .shape = tokens.shape(), .at = [tokens](std::int64_t batch) {
            Tensor row = contiguous(narrow(tokens, 0, batch, 1));
            Tensor targets = next_tokens(row);
            return std::pair(std::move(row), std::move(targets));
          }};
}

EvalInput text_windows(const std::string& path, const Weights& weights, const std::string& vocabulary) {
  check(weights.vocabulary().has_value(),
        "--data {}: \"{}\" is, or was made from, a Hugging Face directory, and what text its tokens stand for is not "
        "known here; pass token ids by --tokens",
        path, weights.dir());
  const std::string_view kind = name(weights.vocabulary()->kind());
  check(vocabulary == "auto" || vocabulary == kind, "--vocabulary {}: the weights in \"{}\" are for {}", vocabulary,
        weights.dir(), kind);
  const auto data =
      std::make_shared<const TokenData>(TokenData::open(open_text(path, vocabulary), *weights.vocabulary()));
  const std::int64_t tokens = data->num_tokens();
  check(tokens > 1, "--data {} has {} token; a loss needs two or more", path, tokens);
  const std::int64_t length = std::min(weights.model().sequence, tokens - 1), windows = (tokens - 1) / length;
  const std::int64_t rows = std::min(windows, std::max<std::int64_t>(1, kTokensInBatch / length));
  return {.batches = (windows + rows - 1) / rows,
          .shape = {windows, length},
          .at =
              [=](std::int64_t batch) {
                const std::int64_t first = batch * rows, count = std::min(rows, windows - first);
                return read_windows(count, length, [&](std::int64_t i, std::span<std::int32_t> window) {
                  data->read((first + i) * length, window);
                });
              },
          .over = fmt::format(" over {} of {} tokens, in windows of {}", windows * length, tokens, length)};
}

}  // namespace sherd
