#include "nn/data/vocabulary.h"

#include <numeric>
#include <utility>

#include "nn/data/utf8.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
constexpr std::string_view kCharsPrefix = "chars ";

void check_ascends(std::uint32_t last, std::uint32_t next) {
  check(last < next, "the characters of a vocabulary must ascend: {} stands before {}", describe_char(last),
        describe_char(next));
}
}  // namespace

Vocabulary Vocabulary::bytes() {
  Vocabulary vocabulary;
  vocabulary.tokens_.resize(256);
  std::iota(vocabulary.tokens_.begin(), vocabulary.tokens_.end(), 0);
  return vocabulary;
}

Vocabulary Vocabulary::chars(std::vector<std::uint32_t> code_points) {
  check(!code_points.empty(), "a vocabulary needs at least one character");
  for (const std::size_t i : Numbers<std::size_t>(1, code_points.size()))
    check_ascends(code_points[i - 1], code_points[i]);
  check(code_points.back() <= kMaxCodePoint, "{} is no character", describe_char(code_points.back()));
  Vocabulary vocabulary;
  vocabulary.kind_ = Kind::chars;
  vocabulary.tokens_.assign(code_points.back() + 1, -1);
  for (const std::size_t i : indices(code_points)) vocabulary.tokens_[code_points[i]] = static_cast<std::int32_t>(i);
  vocabulary.code_points_ = std::move(code_points);
  return vocabulary;
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> result;
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar unit =
        kind_ == Kind::bytes ? DecodedChar{static_cast<std::uint8_t>(text[at]), 1} : decode_utf8(text.substr(at));
    check(unit.bytes > 0, "the text is not valid UTF-8 at byte {}", at);
    result.push_back(token(unit.code_point));
    check(result.back() >= 0, "the character {} at byte {} is not in the vocabulary of {} characters",
          describe_char(unit.code_point), at, size());
    at += unit.bytes;
  }
  return result;
}

std::string Vocabulary::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    check(token >= 0 && token < size(), "token {} is not in the vocabulary of {} tokens", token, size());
    if (kind_ == Kind::bytes) text += static_cast<char>(token);
    else append_utf8(text, code_points_[static_cast<std::size_t>(token)]);
  }
  return text;
}

std::string Vocabulary::to_text() const {
  if (kind_ == Kind::bytes) return "bytes";
  std::string text(kCharsPrefix);
  for (const std::uint32_t c : code_points_) append_utf8(text, c);
  return text;
}

Vocabulary Vocabulary::from_text(std::string_view text) {
  if (text == "bytes") return bytes();
  check(text.starts_with(kCharsPrefix), "\"{}\" is no vocabulary", text.substr(0, 40));
  std::vector<std::uint32_t> code_points;
  for (text.remove_prefix(kCharsPrefix.size()); !text.empty();) {
    const DecodedChar c = decode_utf8(text);
    check(c.bytes > 0, "the vocabulary is not valid UTF-8");
    if (!code_points.empty()) check_ascends(code_points.back(), c.code_point);  // now: a long text repeats itself
    code_points.push_back(c.code_point);
    text.remove_prefix(c.bytes);
  }
  return chars(std::move(code_points));
}

std::string_view name(Vocabulary::Kind kind) { return kind == Vocabulary::Kind::bytes ? "bytes" : "chars"; }

Vocabulary::Kind vocabulary_kind_from_name(std::string_view text) {
  if (text == "bytes") return Vocabulary::Kind::bytes;
  check(text == "chars", "unknown vocabulary \"{}\"; the vocabularies are bytes and chars", text);
  return Vocabulary::Kind::chars;
}

std::string describe_char(std::uint32_t code_point) {
  const bool printable = code_point >= 0x20 && code_point < 0x7F;
  return printable ? fmt::format("'{}'", static_cast<char>(code_point)) : fmt::format("U+{:04X}", code_point);
}

}  // namespace sherd
