#pragma once
// Takes a text apart from its start to its end. Every error says line and column.
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/tensor/error.h"

namespace sherd {

class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  std::size_t position() const { return at_; }
  bool is_at_end() const { return at_ == text_.size(); }
  /// Whether `expected` comes next; it stays.
  bool sees(std::string_view expected) const { return text_.substr(at_).starts_with(expected); }
  /// Whether `expected` comes next; then it is taken.
  bool take(std::string_view expected);
  /// Error unless `expected` comes next.
  void expect(std::string_view expected);
  /// Letters, digits and _ . / ~ -; may be nothing.
  std::string_view word();
  /// A word, or what quoted() wrote. Error if neither comes next.
  std::string name();
  /// What quoted() wrote.
  std::string text_in_quotes();
  /// Error unless first <= number <= last.
  std::int64_t integer(std::int64_t first, std::int64_t last);
  /// What stands between the brace that comes next and its counterpart; braces in quotes do not count.
  std::string_view braces();

  /// "expected a value, found "...", at the position.
  [[noreturn]] void refuse(std::string_view expected) const;
  /// "program text, line 3, column 7: problem".
  [[noreturn]] void fail_at(std::size_t position, std::string_view problem) const;

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace sherd
