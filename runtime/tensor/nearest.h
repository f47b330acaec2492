#pragma once
// "Did you mean": the valid name that a mistyped one resembles, if there is one.
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// Insertions, deletions, substitutions and swaps of neighbours that lead from `a` to `b` (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the name that `word` may have meant; nothing if none is like it. Rules, the first that finds a name counts:
/// the last part of both is the same ("lr" for "optimizer.lr"); the fewest edits lead from the word to a name or to its
/// last part, at most a third of the word's length ("setps"); one is the other but for a suffix after '-', '_' or '.'
/// ("batch_size" for "batch"). Among equals the nearer of the whole names is taken, then the first.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> names);

/// Returns " (did you mean NAME?)" of the nearest name, for an error message; empty if none is like it.
std::string did_you_mean(std::string_view word, std::span<const std::string> names);

}  // namespace sherd
