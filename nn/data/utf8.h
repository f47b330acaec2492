#pragma once
// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629).
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sherd {

inline constexpr std::uint32_t kMaxCodePoint = 0x10FFFF;

struct DecodedChar {
  std::uint32_t code_point = 0;
  std::size_t bytes = 0;   ///< 0: there is no valid character here
  bool cut_short = false;  ///< with bytes == 0: the bytes are valid so far, but the text ends inside the character
};

/// The character at the start of `text`, which must not be empty.
DecodedChar decode_utf8(std::string_view text);

/// Appends one character.
void append_utf8(std::string& text, std::uint32_t code_point);

/// Offset of the first byte that is not part of a valid character; npos if there is none.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace sherd
