#include "runtime/tensor/nearest.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {

/// What is longer is no mistyped name, and the table of distances would grow with it.
constexpr std::size_t kLongestName = 256;
constexpr std::string_view kSeparators = "-_.";

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

/// Whether `longer` is `shorter` and a suffix after a separator.
bool has_suffix(std::string_view longer, std::string_view shorter) {
  return !shorter.empty() && longer.size() > shorter.size() && longer.starts_with(shorter) &&
         kSeparators.find(longer[shorter.size()]) != kSeparators.npos;
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

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> names) {
  if (word.empty() || word.size() > kLongestName) return std::nullopt;
  const std::string* found = nullptr;
  std::pair fewest(word.size() / 3 + 1, std::size_t{0});  // of edits, and of those of the whole name among equals
  for (const std::string& name : names) {
    const std::size_t whole = edit_distance(word, name);
    const bool has_part = last_part(word) == last_part(name);
    const std::pair edits(has_part ? 0 : std::min(whole, edit_distance(word, last_part(name))), whole);
    if (edits >= fewest) continue;
    fewest = edits;
    found = &name;
  }
  if (found != nullptr) return *found;
  for (const std::string& name : names)
    for (const std::string_view part : {std::string_view(name), last_part(name)})
      if (has_suffix(word, part) || has_suffix(part, word)) return name;
  return std::nullopt;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> names) {
  const std::optional<std::string> name = nearest(word, names);
  return name ? fmt::format(" (did you mean {}?)", *name) : "";
}

}  // namespace sherd
