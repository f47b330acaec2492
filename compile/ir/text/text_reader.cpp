#include "compile/ir/text/text_reader.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "compile/ir/text/words.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

// Sizes of a text may be anything; byte counts made from what passes are at most kMostBytes.
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

Dims read_dims(TextReader& in, std::int64_t first) {
  Dims result;
  in.expect("[");
  if (in.take("]")) return result;
  do {
    if (result.size() == kMaxDims) in.refuse(fmt::format("at most {} dims", kMaxDims));
    result.push_back(in.integer(first, kMostElements));
  } while (in.take(","));
  in.expect("]");
  return result;
}

}  // namespace

bool TextReader::take(std::string_view expected) {
  if (!sees(expected)) return false;
  at_ += expected.size();
  return true;
}

void TextReader::expect(std::string_view expected) {
  if (!take(expected)) refuse(expected == "\n" ? "the end of the line" : quoted(expected));
}

std::string_view TextReader::word() {
  const std::size_t begin = at_;
  while (at_ < text_.size() && is_word_character(text_[at_])) ++at_;
  return text_.substr(begin, at_ - begin);
}

std::string TextReader::name() {
  if (sees("\"")) return text_in_quotes();
  const std::string_view plain = word();
  if (plain.empty()) refuse("a name");
  return std::string(plain);
}

std::string TextReader::text_in_quotes() {
  const std::size_t begin = at_;
  expect("\"");
  std::string result;
  while (!take("\"")) {
    if (is_at_end() || sees("\n")) fail_at(begin, "the quote is not closed");
    if (!take("\\")) {
      result += text_[at_++];
    } else if (take("x")) {
      unsigned byte = 0;
      const std::string_view digits = text_.substr(at_, 2);
      const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (problem != std::errc() || end != digits.data() + 2) refuse("two hexadecimal digits");
      result += static_cast<char>(byte);
      at_ += 2;
    } else {
      if (!sees("\"") && !sees("\\")) refuse("\\\\, \\\" or \\x0a");
      result += text_[at_++];
    }
  }
  return result;
}

std::int64_t TextReader::integer(std::int64_t first, std::int64_t last) {
  std::int64_t value = 0;
  const std::string_view rest = text_.substr(at_);
  const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (problem != std::errc() || value < first || value > last)
    refuse(fmt::format("an integer from {} to {}", first, last));
  at_ += static_cast<std::size_t>(end - rest.data());
  return value;
}

std::string_view TextReader::braces() {
  const std::size_t begin = at_;
  expect("{");
  bool in_quotes = false;
  for (int depth = 1; depth > 0; ++at_) {
    if (is_at_end()) fail_at(begin, "the brace is not closed");
    const char c = text_[at_];
    if (in_quotes && c == '\\' && at_ + 1 < text_.size()) ++at_;
    else if (c == '"') in_quotes = !in_quotes;
    else if (!in_quotes) depth += c == '{' ? 1 : c == '}' ? -1 : 0;
  }
  return text_.substr(begin + 1, at_ - begin - 2);
}

std::string TextReader::hexadecimal() {
  const std::size_t position = at_;
  const std::string_view digits = word();
  std::string result;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    unsigned byte = 0;
    const auto [end, problem] = std::from_chars(&digits[i], &digits[i] + 2, byte, 16);
    if (problem != std::errc() || end != &digits[i] + 2) fail_at(position + i, "expected hexadecimal digits");
    result += static_cast<char>(byte);
  }
  if (digits.empty() || digits.size() % 2 != 0) fail_at(position, "expected pairs of hexadecimal digits");
  return result;
}

void TextReader::refuse(std::string_view expected) const {
  constexpr std::size_t kShown = 30;
  const std::string_view rest = text_.substr(at_);
  const std::string_view found = rest.substr(0, std::min(rest.find('\n'), kShown));
  fail_at(at_, fmt::format("expected {}, found {}", expected,
                           rest.empty()    ? "the end of the text"
                           : found.empty() ? "the end of the line"
                                           : quoted(found)));
}

void TextReader::fail_at(std::size_t position, std::string_view problem) const {
  const std::string_view before = text_.substr(0, position);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  fail("program text, line {}, column {}: {}", line, position - line_start + 1, problem);
}

Shape read_shape(TextReader& in) {
  const std::size_t position = in.position();
  const Shape result = read_dims(in, 0);
  std::int64_t elements = 1;
  for (const std::int64_t size : result)
    if (size > 0 && __builtin_mul_overflow(elements, size, &elements)) elements = kMostElements + 1;
  if (elements > kMostElements) in.fail_at(position, "more elements than memory has bytes");
  return result;
}

TensorRef read_layout(TextReader& in, ValueId value) {
  const std::size_t position = in.position();
  TensorRef ref;
  ref.value = value;
  const std::string_view word = in.word();
  ref.dtype = in.located(position, [&] { return dtype_from_name(word); });
  ref.shape = read_shape(in);
  ref.strides = in.take("s") ? read_dims(in, -kMostElements) : contiguous_strides(ref.shape);
  if (ref.strides.size() != ref.shape.size()) in.fail_at(position, "as many strides as dims");
  if (in.take("+")) ref.offset = in.integer(-kMostElements, kMostElements);
  std::int64_t reach = 0;
  for (const int i : indices(ref.shape)) {
    std::int64_t step = 0;
    if (ref.shape[i] > 0 && (__builtin_mul_overflow(ref.shape[i] - 1, std::abs(ref.strides[i]), &step) ||
                             __builtin_add_overflow(reach, step, &reach) || reach > kMostElements))
      in.fail_at(position, "strides reach further than memory has bytes");
  }
  return ref;
}

Device read_device(TextReader& in) {
  if (in.take("cpu")) return Device::cpu();
  if (in.take("meta")) return Device::meta();
  if (!in.take("cuda:")) in.refuse("cpu, meta or cuda:0");
  return Device::cuda(static_cast<std::uint8_t>(in.integer(0, 255)));
}

MemoryCategory read_category(TextReader& in) {
  const std::size_t position = in.position();
  const std::string_view word = in.word();
  for (const int i : up_to(kNumCategories))
    if (const auto category = static_cast<MemoryCategory>(i); name(category) == word) return category;
  in.fail_at(position, fmt::format("there is no memory category {}", quoted(word)));
}

}  // namespace sherd::ir
