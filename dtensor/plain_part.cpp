#include "dtensor/plain_part.h"

#include <vector>

#include "dtensor/modes.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/indices.h"

namespace sherd {

bool has_part_of(const Spec& spec, int dim, std::int64_t size, std::int64_t count) {
  std::vector<int> at(static_cast<std::size_t>(spec.num_axes()), 0);
  for (;;) {
    if (spec.range_at(dim, size, at).size() == count) return true;
    std::size_t a = 0;
    for (const int axis : spec.axes_of(dim)) {
      if (++at[static_cast<std::size_t>(axis)] < spec.axis_size(axis)) break;
      at[static_cast<std::size_t>(axis)] = 0;
      ++a;
    }
    if (a == spec.axes_of(dim).size()) return false;
  }
}

// Backward picks by the index that forward has met, perhaps from gradients that lie otherwise.
void refuse_part(const RuleCall& call, std::size_t i, int dim) {
  const TensorMeta &x = call.in[0], &plain = call.in[i];
  if (!x.layout || plain.absent || plain.layout || is_implicit_replication() || in_backward()) return;
  const auto& spec = static_cast<const Spec&>(*x.layout);  // there is no other kind
  for (const int d : up_to(x.ndim())) {
    if (d == dim || plain.size(d) >= x.size(d) || spec.num_shards(d) == 1) continue;
    if (!has_part_of(spec, d, x.size(d), plain.size(d))) continue;
    fail(
        "input {} is the plain tensor {}, as long along dim {} as a rank's part of input 0, {}: it may be of all ranks "
        "or of a rank's part; {}",
        i, plain, d, x, kSayHowItLies);
  }
}

}  // namespace sherd
