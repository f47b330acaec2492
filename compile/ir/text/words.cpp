#include "compile/ir/text/words.h"

#include <algorithm>

namespace sherd::ir {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text)
    if (c == '"' || c == '\\') result += fmt::format("\\{}", c);
    else if (c < ' ' || c > '~') result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else result += c;
  return result + '"';
}

std::string plain_or_quoted(std::string_view text) {
  const bool is_word = !text.empty() && std::ranges::all_of(text, is_word_character) && !text.ends_with(kGradSuffix);
  return is_word ? std::string(text) : quoted(text);
}

}  // namespace sherd::ir
