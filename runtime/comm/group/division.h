#pragma once
// Dividing a group into subgroups: what the ranks of a list must be, and how the parts are named.
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::comm {

/// "0,2,4", for messages.
std::string text_of_ranks(std::span<const int> list);
/// Error, naming rank and list, unless these are different ranks of a group of `size`, and `rank` is one of them.
void check_ranks(std::span<const int> list, int rank, int size);
/// Error, the same on every rank, unless the lists, by rank, divide the group.
void check_lists(const std::vector<std::vector<int>>& lists);
/// "ranks 1,3", as in the calls of a subgroup.
std::string members_text(std::span<const int> ranks);
/// A list as bytes that ranks show each other, and back.
std::string_view bytes_of(std::span<const int> list);
std::vector<int> list_of(std::string_view bytes);

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
