#include "runtime/comm/group/division.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd::comm {

std::string text_of_ranks(std::span<const int> list) { return fmt::format("{}", fmt::join(list, ",")); }

void check_ranks(std::span<const int> list, int rank, int size) {
  const auto has = [](std::span<const int> ranks, int r) { return std::ranges::find(ranks, r) != ranks.end(); };
  check(!list.empty(), "subgroup: rank {} gives an empty list; name the ranks of the group that it will be in", rank);
  for (std::size_t i = 0; i < list.size(); ++i) {
    check(list[i] >= 0 && list[i] < size, "subgroup: rank {} gives the ranks {}; those of the group are 0..{}", rank,
          text_of_ranks(list), size - 1);
    check(!has(list.first(i), list[i]), "subgroup: rank {} gives the ranks {}; a rank is in a group once", rank,
          text_of_ranks(list));
  }
  check(has(list, rank), "subgroup: rank {} gives the ranks {}; name the group that rank {} will be in", rank,
        text_of_ranks(list), rank);
}

}  // namespace sherd::comm
