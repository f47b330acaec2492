#pragma once
// "Did you mean": the valid name closest to a mistyped one.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// Insertions, deletions, substitutions and swaps of neighbours that lead from `a` to `b` (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest distance to `text`, the first among equals. Names with dots are compared by their
/// last part too, so that "layers" finds "model.layers"; of `text` the first 256 characters count. Throws Error if
/// there are no candidates.
std::string nearest(std::string_view text, std::span<const std::string> candidates);

}  // namespace sherd
