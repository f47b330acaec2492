#pragma once
// Text as tokens: random access, the split into a training and a validation part, and the windows drawn from them.
//
//   0 ............ num_train | ............ num_tokens
//   training windows: drawn    validation windows: adjacent, remainder dropped
//
// Everything is a pure function of (data, seed, step, sample), so any number of ranks sees the same global batch and a
// resumed run continues where it stopped. All readers are const and may run on several threads.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nn/data/text_files.h"
#include "nn/data/vocabulary.h"

namespace sherd {

class TokenData {
 public:
  /// Opens a file or folder (see TextFiles::open). `chars` reads the data once to find its characters; `bytes` reads
  /// nothing yet. Throws WrongText naming the file and offset of invalid UTF-8.
  static TokenData open(const std::string& path, Vocabulary::Kind kind) { return open(TextFiles::open(path), kind); }
  static TokenData open(TextFiles files, Vocabulary::Kind kind);
  /// With a given vocabulary (of a checkpoint); a character outside it is a WrongText naming it, file and offset.
  static TokenData open(const std::string& path, const Vocabulary& vocabulary) {
    return open(TextFiles::open(path), vocabulary);
  }
  static TokenData open(TextFiles files, const Vocabulary& vocabulary);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const TextFiles& files() const { return files_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  /// The first 90 %, rounded down.
  std::int64_t num_train() const { return num_tokens_ / 10 * 9 + num_tokens_ % 10 * 9 / 10; }
  std::int64_t num_validation() const { return num_tokens_ - num_train(); }

  /// Reads tokens position .. position + out.size(). Throws Error if they do not exist or a file shrank.
  void read(std::int64_t position, std::span<std::int32_t> out) const;

  /// Throws WrongText unless both parts can hold a window: `sequence` inputs and the token after them.
  void check_sequence(std::int64_t sequence) const;

  /// Sample `sample` of the global batch of `step`: a window of the training part, drawn with replacement. `window`
  /// receives sequence + 1 tokens: inputs are the first `sequence`, targets the last.
  void training_window(std::uint64_t seed, std::int64_t step, std::int64_t sample,
                       std::span<std::int32_t> window) const;

  std::int64_t num_validation_windows(std::int64_t sequence) const { return (num_validation() - 1) / sequence; }
  /// Window `index` of the validation part: its inputs start at index x sequence. `window` as above.
  void validation_window(std::int64_t index, std::span<std::int32_t> window) const;

 private:
  TokenData(TextFiles files, Vocabulary vocabulary);
  void index_characters(const Vocabulary* known);
  void read_bytes(std::int64_t position, std::span<std::int32_t> out) const;
  void read_chars(std::int64_t position, std::span<std::int32_t> out) const;

  TextFiles files_;
  Vocabulary vocabulary_;
  std::int64_t num_tokens_ = 0;
  // Where every kCharsPerMark-th character starts; empty if every character is one byte.
  std::vector<std::int64_t> marks_;
};

/// Start of a training window among `choices` starts: a random function of (seed, step, sample).
std::int64_t draw_window(std::uint64_t seed, std::int64_t step, std::int64_t sample, std::int64_t choices);

}  // namespace sherd
