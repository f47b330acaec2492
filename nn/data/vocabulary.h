#pragma once
// Which token stands for which piece of text: `bytes` (256 tokens, any data) or `chars` (the distinct characters of
// the data in code point order, UTF-8).
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

class Vocabulary {
 public:
  enum class Kind : std::uint8_t { bytes, chars };

  /// Token = byte value.
  static Vocabulary bytes();
  /// Token i is the i-th code point; they must ascend strictly. Throws Error otherwise.
  static Vocabulary chars(std::vector<std::uint32_t> code_points);

  Kind kind() const { return kind_; }
  std::int64_t size() const { return kind_ == Kind::bytes ? 256 : static_cast<std::int64_t>(code_points_.size()); }
  /// The token of a byte (`bytes`) or code point (`chars`); -1 if there is none.
  std::int32_t token(std::uint32_t unit) const { return unit < tokens_.size() ? tokens_[unit] : -1; }

  /// Throws Error naming the byte offset and the character that is invalid or not in the vocabulary.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws Error naming a token out of range. `bytes` may give text that is not UTF-8.
  std::string decode(std::span<const std::int32_t> tokens) const;

  /// For checkpoints: "bytes", or "chars " and the characters. Inverse: from_text(), which throws Error on other text.
  std::string to_text() const;
  static Vocabulary from_text(std::string_view text);
  friend bool operator==(const Vocabulary& a, const Vocabulary& b) {
    return a.kind_ == b.kind_ && a.code_points_ == b.code_points_;
  }

 private:
  Kind kind_ = Kind::bytes;
  std::vector<std::uint32_t> code_points_;  // chars only
  std::vector<std::int32_t> tokens_;        // by byte or code point, -1 if it has no token
};

std::string_view name(Vocabulary::Kind kind);
/// Throws Error unless `text` is "bytes" or "chars".
Vocabulary::Kind vocabulary_kind_from_name(std::string_view text);
/// "'e'" for printable ASCII, "U+00E9" for anything else.
std::string describe_char(std::uint32_t code_point);

}  // namespace sherd
