#include "tools/train/run_text.h"

#include <algorithm>
#include <vector>

#include "nn/data/not_text.h"
#include "runtime/tensor/indices.h"
#include "tools/train/exit_status.h"

namespace sherd::train {

namespace {

void check_same_vocabulary(const TrainConfig& config, const Weights& initial) {
  const std::string_view kind = name(initial.vocabulary()->kind());
  check_usage(config.vocabulary == "auto" || config.vocabulary == kind,
              "vocabulary = {}, but the weights in {} are for {}; leave the key out to take theirs", config.vocabulary,
              config.init_from, kind);
}

void check_meaning(const TrainConfig& config, const Weights& initial, const Vocabulary& vocabulary) {
  check_usage(
      config.vocabulary != "auto" || initial.model().vocabulary == vocabulary.size(),
      "init_from = {} has a vocabulary of {} tokens, and what text they stand for is not known here: the data's {} {} "
      "would be trained as ids that mean other text to it; start from a save of sherd train, or pass --vocabulary "
      "bytes (or chars) to train on such ids all the same",
      config.init_from, initial.model().vocabulary, vocabulary.size(), name(vocabulary.kind()));
}

}  // namespace

TextFiles open_text(const std::string& path, std::string_view vocabulary) {
  TextFiles files = TextFiles::open(path);
  if (vocabulary != "bytes") as_usage([&] { check_is_text(files); });
  return files;
}

TokenData open_run_text(const TrainConfig& config, const Weights* initial) {
  const bool is_told = initial && initial->vocabulary();
  if (is_told) check_same_vocabulary(config, *initial);
  TextFiles files = open_text(config.data, config.vocabulary);
  if (is_told) return TokenData::open(std::move(files), *initial->vocabulary());
  const auto kind = config.vocabulary == "chars" ? Vocabulary::Kind::chars : Vocabulary::Kind::bytes;
  TokenData data = TokenData::open(std::move(files), kind);
  if (initial) check_meaning(config, *initial, data.vocabulary());
  return data;
}

std::pair<Tensor, Tensor> read_windows(
    std::int64_t count, std::int64_t sequence,
    const std::function<void(std::int64_t i, std::span<std::int32_t> window)>& read) {
  Tensor inputs = Tensor::empty({count, sequence}, DType::i32), targets = Tensor::empty({count, sequence}, DType::i32);
  for (const std::int64_t i : up_to(count)) {
    std::vector<std::int32_t> window(static_cast<std::size_t>(sequence + 1), 0);
    read(i, window);
    std::copy_n(window.begin(), sequence, inputs.mutable_data<std::int32_t>() + i * sequence);
    std::copy_n(window.begin() + 1, sequence, targets.mutable_data<std::int32_t>() + i * sequence);
  }
  return {std::move(inputs), std::move(targets)};
}

std::string meaning_of_ids(const TrainConfig::Model& model, const Vocabulary& vocabulary) {
  if (model.vocabulary == 0) return "";
  const bool is_bytes = vocabulary.kind() == Vocabulary::Kind::bytes;
  return fmt::format("ids 0..{} are the text's {}, the model knows {}", vocabulary.size() - 1,
                     is_bytes ? "bytes" : "characters by code point", model.vocabulary);
}

}  // namespace sherd::train
