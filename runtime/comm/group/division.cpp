#include "runtime/comm/group/division.h"

#include <vector>

#include "runtime/tensor/error.h"

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

}  // namespace sherd::comm
