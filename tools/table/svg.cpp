#include "tools/table/svg.h"

#include <array>

#include <fmt/format.h>

namespace sherd::table {

std::string_view color_of(MemoryCategory category) {
  static constexpr std::array<std::string_view, kNumCategories> kColors{"#3b6ea8", "#8fb8de", "#c8553d", "#6a4c93",
                                                                        "#e0a93b", "#5a9367", "#a0a0a0"};
  return kColors[static_cast<std::size_t>(category)];
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
}

std::string text_at(double x, double y, std::string_view text, std::string_view more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escaped(text));
}

std::string document(int width, int height, std::string_view body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<style>.n{{font-size:11px;fill:#333}}.t{{font-weight:bold}}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n{2}</svg>\n",
      width, height, body);
}

}  // namespace sherd::table
