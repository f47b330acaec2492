#include "nn/data/token_data.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "nn/data/utf8.h"
#include "runtime/op/rows/philox.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

// With one byte per token, position = offset. Characters of more bytes need an index: the scan that finds the
// vocabulary also marks where every 512th character starts (1.6 % of the size of ASCII text), and a read decodes from
// the last mark before it. Files are separate texts: no character extends from one file into the next.
namespace sherd {

namespace {

constexpr std::int64_t kCharsPerMark = 512;
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

template <class... Args>
void check_text(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw WrongText(fmt::format(format, std::forward<Args>(args)...));
}

/// Calls visit(code_point, offset in the run of bytes) for every character from `offset` on until it returns false or
/// the data ends. Reads blocks of `block_bytes`.
template <class Visit>
void for_each_char(const TextFiles& files, std::int64_t offset, std::int64_t block_bytes, Visit&& visit) {
  std::string block;
  while (offset < files.bytes()) {
    const TextFiles::File& file = files.file_at(offset);
    const std::int64_t file_end = file.begin + file.size;
    block.resize(static_cast<std::size_t>(std::min(block_bytes, file_end - offset)));
    files.read(offset, block);
    const bool last_of_file = offset + static_cast<std::int64_t>(block.size()) == file_end;
    std::string_view rest = block;
    while (!rest.empty()) {
      const DecodedChar c = decode_utf8(rest);
      if (c.cut_short && !last_of_file) break;  // the next block starts with this character
      check_text(c.bytes > 0,
                 "the data file \"{}\" is not valid UTF-8 at byte {}; use the vocabulary bytes for such data",
                 file.path, offset - file.begin);
      if (!visit(c.code_point, offset)) return;
      rest.remove_prefix(c.bytes);
      offset += static_cast<std::int64_t>(c.bytes);
    }
  }
}

}  // namespace

TokenData::TokenData(TextFiles files, Vocabulary vocabulary)
    : files_(std::move(files)), vocabulary_(std::move(vocabulary)), num_tokens_(files_.bytes()) {}

TokenData TokenData::open(TextFiles files, Vocabulary::Kind kind) {
  TokenData data(std::move(files), Vocabulary::bytes());
  if (kind == Vocabulary::Kind::chars) data.index_characters(nullptr);
  return data;
}

TokenData TokenData::open(TextFiles files, const Vocabulary& vocabulary) {
  TokenData data(std::move(files), vocabulary);
  if (vocabulary.kind() == Vocabulary::Kind::chars) data.index_characters(&vocabulary);
  return data;
}

void TokenData::index_characters(const Vocabulary* known) {
  std::vector<bool> seen(kMaxCodePoint + 1);
  std::int64_t count = 0;
  for_each_char(files_, 0, kBlockBytes, [&](std::uint32_t code_point, std::int64_t offset) {
    if (known != nullptr && known->token(code_point) < 0) {
      const TextFiles::File& file = files_.file_at(offset);
      throw WrongText(
          fmt::format("the data file \"{}\" holds {} at byte {}, which is not among the {} characters that the model "
                      "knows; leave it out of the text, or train a model of its own on that",
                      file.path, describe_char(code_point), offset - file.begin, known->size()));
    }
    if (count % kCharsPerMark == 0) marks_.push_back(offset);
    seen[code_point] = true;
    ++count;
    return true;
  });
  if (count == files_.bytes()) marks_.clear();
  marks_.shrink_to_fit();
  num_tokens_ = count;
  if (known != nullptr) return;
  std::vector<std::uint32_t> code_points;
  for (std::uint32_t c = 0; c <= kMaxCodePoint; ++c)
    if (seen[c]) code_points.push_back(c);
  vocabulary_ = Vocabulary::chars(std::move(code_points));
}

void TokenData::read(std::int64_t position, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  check(position >= 0 && position <= num_tokens_ - count, "tokens {} to {} of \"{}\" asked for, which has {}", position,
        position + count, files_.path(), num_tokens_);
  if (marks_.empty()) read_bytes(position, out);
  else read_chars(position, out);
}

void TokenData::read_bytes(std::int64_t position, std::span<std::int32_t> out) const {
  std::string bytes(out.size(), '\0');
  files_.read(position, bytes);
  for (const std::size_t i : indices(out)) {
    out[i] = vocabulary_.token(static_cast<std::uint8_t>(bytes[i]));
    check(out[i] >= 0, "the data \"{}\" changed: token {} is no character that was there when it was opened",
          files_.path(), position + static_cast<std::int64_t>(i));
  }
}

void TokenData::read_chars(std::int64_t position, std::span<std::int32_t> out) const {
  if (out.empty()) return;
  std::int64_t at = position / kCharsPerMark * kCharsPerMark;  // of the next character
  const std::int64_t end = position + static_cast<std::int64_t>(out.size());
  const std::int64_t block_bytes = std::max<std::int64_t>(end - at, 8);  // holds at least one character
  for_each_char(files_, marks_[static_cast<std::size_t>(position / kCharsPerMark)], block_bytes,
                [&](std::uint32_t code_point, std::int64_t) {
                  if (at >= position) {
                    const std::int32_t token = vocabulary_.token(code_point);
                    check(token >= 0, "the data \"{}\" changed: token {} is {}, which was not there when it was opened",
                          files_.path(), at, describe_char(code_point));
                    out[static_cast<std::size_t>(at - position)] = token;
                  }
                  return ++at < end;
                });
  check(at == end, "the data \"{}\" changed: it ends before token {}", files_.path(), end);
}

void TokenData::check_sequence(std::int64_t sequence) const {
  const auto check_part = [&](const char* part, std::int64_t tokens) {
    check_text(
        tokens > sequence,
        "a sequence of {} tokens and the one after it do not fit the {} part of \"{}\", which has {} of {} tokens; "
        "use a shorter sequence or more data",
        sequence, part, files_.path(), tokens, num_tokens_);
  };
  check(sequence >= 1, "a sequence has at least 1 token, not {}", sequence);
  check_part("training", num_train());
  check_part("validation", num_validation());
}

void TokenData::training_window(std::uint64_t seed, std::int64_t step, std::int64_t sample,
                                std::span<std::int32_t> window) const {
  const std::int64_t choices = num_train() - static_cast<std::int64_t>(window.size()) + 1;
  check(choices >= 1, "a window of {} tokens does not fit the training part of \"{}\", which has {}", window.size(),
        files_.path(), num_train());
  read(draw_window(seed, step, sample, choices), window);
}

void TokenData::validation_window(std::int64_t index, std::span<std::int32_t> window) const {
  const auto sequence = static_cast<std::int64_t>(window.size()) - 1;
  check(sequence >= 1 && index >= 0 && index < num_validation_windows(sequence),
        "validation window {} of {} asked for (sequence {})", index,
        sequence >= 1 ? num_validation_windows(sequence) : 0, sequence);
  read(num_train() + index * sequence, window);
}

std::int64_t draw_window(std::uint64_t seed, std::int64_t step, std::int64_t sample, std::int64_t choices) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto s = static_cast<std::uint64_t>(step), i = static_cast<std::uint64_t>(sample);
  constexpr std::uint64_t kWindows = 0x73776F646E6977;  // "windows": a key of its own among the uses of the seed
  const std::uint64_t key = seed ^ kWindows;
  const auto words = philox4x32({low(s), high(s), low(i), high(i)}, {low(key), high(key)});
  const std::uint64_t random = words[0] | static_cast<std::uint64_t>(words[1]) << 32;
  // Multiply-shift maps 64 random bits to 0..choices-1 with a bias below choices / 2^64.
  return static_cast<std::int64_t>(static_cast<unsigned __int128>(random) * static_cast<std::uint64_t>(choices) >> 64);
}

}  // namespace sherd
