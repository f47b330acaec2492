#include "runtime/tensor/nearest.h"

#include <algorithm>
#include <vector>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {

/// What is longer is no mistyped name: its end says nothing, and tables grow with it.
constexpr std::size_t kLongestName = 256;

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

/// Distance between dotted keys: the same last part under another section costs 1.
std::size_t key_distance(std::string_view a, std::string_view b) {
  return std::min(edit_distance(a, b), edit_distance(last_part(a), last_part(b)) + 1);
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // before_last, last and row are rows i-2, i-1 and i of the table of distances between prefixes.
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view text, std::span<const std::string> candidates) {
  check(!candidates.empty(), "there are no names to choose from");
  text = text.substr(0, kLongestName);
  return *std::min_element(candidates.begin(), candidates.end(), [&](const std::string& a, const std::string& b) {
    return key_distance(text, a) < key_distance(text, b);
  });
}

}  // namespace sherd
