#pragma once
// Seeded damage to a text: what an editor, a broken disk or an attacker does to it.
#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::testing {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  /// `text` with one to three changes: bytes changed, removed, put in or doubled, numbers replaced, lines swapped,
  /// doubled or removed, the end cut off.
  std::string damaged(std::string text) {
    for (int changes = 1 + below(3); changes > 0; --changes) change(text);
    return text;
  }

 private:
  int below(std::size_t n) { return static_cast<int>(random_() % (n ? n : 1)); }

  void change(std::string& text) {
    if (text.empty()) return;
    const auto at = static_cast<std::size_t>(below(text.size()));
    switch (below(9)) {
      case 0: text[at] = static_cast<char>(below(256)); break;
      case 1: text.erase(at, 1 + static_cast<std::size_t>(below(8))); break;
      case 2: text.insert(at, 1, kTokens[at % kTokens.size()]); break;
      case 3: text.insert(at, text.substr(at, static_cast<std::size_t>(below(40)))); break;
      case 4: replace_number(text, at); break;
      case 5: text.resize(at); break;
      case 6: replace_line(text, at, ""); break;
      case 7: replace_line(text, at, line_at(text, static_cast<std::size_t>(below(text.size())))); break;
      case 8: {
        const std::string line = line_at(text, at);
        replace_line(text, at, line + line);
        break;
      }
    }
  }

  // The first number from `at` on.
  void replace_number(std::string& text, std::size_t at) {
    static constexpr std::string_view kNumbers[] = {
        "0", "1", "-1", "7", "64", "4294967296", "9223372036854775807", "99999999999999999999"};
    const std::size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    text.replace(begin, end - begin, kNumbers[below(std::size(kNumbers))]);
  }

  static std::pair<std::size_t, std::size_t> line_around(const std::string& text, std::size_t at) {
    const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    const std::size_t feed = text.find('\n', at);
    return {begin, feed == std::string::npos ? text.size() : feed + 1};
  }
  static std::string line_at(const std::string& text, std::size_t at) {
    const auto [begin, end] = line_around(text, at);
    return text.substr(begin, end - begin);
  }
  static void replace_line(std::string& text, std::size_t at, const std::string& line) {
    const auto [begin, end] = line_around(text, at);
    text.replace(begin, end - begin, line);
  }

  static constexpr std::string_view kTokens = "[]{}()@$&#%!:+,=\"\\ \n0f";
  std::mt19937_64 random_;
};

}  // namespace sherd::testing
