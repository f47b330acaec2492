#pragma once
// Takes a text apart from its start to its end. Every error says line and column.
#include <cstdint>
#include <string>
#include <string_view>

#include "compile/ir/program.h"
#include "runtime/tensor/error.h"

namespace sherd::ir {

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
  /// The bytes whose digits come next, two of them each; one byte at least.
  std::string hexadecimal();

  /// "expected a value, found "...", at the position.
  [[noreturn]] void refuse(std::string_view expected) const;
  /// "program text, line 3, column 7: problem".
  [[noreturn]] void fail_at(std::size_t position, std::string_view problem) const;
  /// What `read` gives, whose Error knows no line, of what begins at the position.
  template <class Read>
  auto located(std::size_t position, const Read& read) const {
    try {
      return read();
    } catch (const Error& error) { fail_at(position, error.message()); }
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

/// Byte counts of a text; sums of a few fit 64 bits.
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;

/// "[2,3]". Error for more elements than memory has bytes.
Shape read_shape(TextReader& in);
/// "f32[2,3]s[1,2]+4": dtype, shape, strides unless they are dense, and offset unless it is 0.
TensorRef read_layout(TextReader& in, ValueId value);
/// "cpu", "meta" or "cuda:0".
Device read_device(TextReader& in);
MemoryCategory read_category(TextReader& in);

}  // namespace sherd::ir
