#include "compile/ir/program.h"

#include <algorithm>

#include "runtime/tensor/indices.h"

namespace sherd::ir {

std::pair<std::int64_t, std::int64_t> TensorRef::extent() const {
  const std::int64_t size = byte_size(dtype);
  std::int64_t first = offset, last = offset;
  for (const int i : indices(shape)) {
    if (shape[i] == 0) return {offset * size, offset * size};
    (strides[i] < 0 ? first : last) += (shape[i] - 1) * strides[i];
  }
  return {first * size, (last + 1) * size};
}

bool operator==(const GraphNode& a, const GraphNode& b) {
  return a.op == b.op && AttrsView(a.attrs) == AttrsView(b.attrs) && std::ranges::equal(a.in, b.in) &&
         std::ranges::equal(a.out, b.out) && a.accumulate == b.accumulate && a.num_mutated == b.num_mutated &&
         a.module == b.module && a.phase == b.phase && a.restores == b.restores && a.releases == b.releases &&
         a.frees == b.frees && a.numbers == b.numbers && a.scratch == b.scratch;
}

}  // namespace sherd::ir
