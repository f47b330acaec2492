#include "runtime/comm/group/division.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

std::string text_of_ranks(std::span<const int> list) { return fmt::format("{}", fmt::join(list, ",")); }

// Lists are printed where one is wrong only: a job has thousands of ranks.
void check_ranks(std::span<const int> list, int rank, int size) {
  check(!list.empty(), "subgroup: rank {} gives an empty list; name the ranks of the group that it will be in", rank);
  std::vector<bool> is_in(static_cast<std::size_t>(size));
  for (const int r : list) {
    if (r < 0 || r >= size)
      fail("subgroup: rank {} gives the ranks {}; those of the group are 0..{}", rank, text_of_ranks(list), size - 1);
    if (is_in[static_cast<std::size_t>(r)])
      fail("subgroup: rank {} gives the ranks {}; a rank is in a group once", rank, text_of_ranks(list));
    is_in[static_cast<std::size_t>(r)] = true;
  }
  if (!is_in[static_cast<std::size_t>(rank)])
    fail("subgroup: rank {} gives the ranks {}; name the group that rank {} will be in", rank, text_of_ranks(list),
         rank);
}

std::string_view bytes_of(std::span<const int> list) {
  return {reinterpret_cast<const char*>(list.data()), list.size_bytes()};
}

std::vector<int> list_of(std::string_view bytes) {
  std::vector<int> list(bytes.size() / sizeof(int));
  if (!list.empty()) std::memcpy(list.data(), bytes.data(), list.size() * sizeof(int));
  return list;
}

/// Error, the same on every rank, unless the lists, by rank, divide the group.
void check_lists(const std::vector<std::vector<int>>& lists) {
  const auto size = static_cast<int>(lists.size());
  for (const int r : up_to(size)) check_ranks(lists[static_cast<std::size_t>(r)], r, size);
  for (const int r : up_to(size)) {
    const std::vector<int>& list = lists[static_cast<std::size_t>(r)];
    for (const int member : list) {
      const std::vector<int>& other = lists[static_cast<std::size_t>(member)];
      check(other == list,
            "subgroup: rank {} gives the ranks {}, rank {} the ranks {}; lists of two ranks are equal, in the same "
            "order, or share no rank",
            r, text_of_ranks(list), member, text_of_ranks(other));
    }
  }
}

/// "ranks 1,3", as in the calls of a subgroup.
std::string members_text(std::span<const int> ranks) {
  constexpr std::size_t kMaxNamed = 8;
  std::string text = fmt::format("ranks {}", fmt::join(ranks.first(std::min(ranks.size(), kMaxNamed)), ","));
  if (ranks.size() > kMaxNamed) text += fmt::format(",... ({} in all)", ranks.size());
  return text;
}

}  // namespace sherd::comm
