#include "compile/ir/text/text_reader.h"

#include <algorithm>
#include <charconv>

#include "compile/ir/text/words.h"

namespace sherd {

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

}  // namespace sherd
