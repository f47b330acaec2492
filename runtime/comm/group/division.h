#pragma once
// Dividing a group into subgroups: what the ranks of a list must be, and how the parts are named.
#include <span>
#include <string>
#include <string_view>

namespace sherd::comm {

/// "0,2,4", for messages.
std::string text_of_ranks(std::span<const int> list);
/// Error, naming rank and list, unless these are different ranks of a group of `size`, and `rank` is one of them.
void check_ranks(std::span<const int> list, int rank, int size);

/// Where a group stands in its family: "" is the group that it began with, "2" its second division, "2.1" the first
/// division of that.
struct Division {
  std::string path;
  int num_divisions = 0;  ///< of this group, so far
  /// The next one of this group.
  Division divide() { return {path + (path.empty() ? "" : ".") + std::to_string(++num_divisions)}; }
  /// "tp#2.1"; "world" where the family begins.
  std::string name(std::string_view label) const { return path.empty() ? "world" : std::string(label) + "#" + path; }
};

}  // namespace sherd::comm
