#include "runtime/comm/group/part_checks.h"

#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::comm {

void check_data(const void* data, std::int64_t count) {
  check(data != nullptr || count == 0, "the data pointer is null but there are {} elements", count);
}

void check_flat(const CollectivePart& part, const void* data) {
  check(part.counts.size() == 1, "a tensor has {} counts, it takes one", part.counts.size());
  const std::int64_t count = part.counts[0];
  check(count >= 0, "the count is {}; counts must not be negative", count);
  check_data(data, count);
}

void add_flat(Fingerprint& call, const CollectivePart& part, const void* data) {
  check_flat(part, data);
  call.add_part(part.dtype, part.counts);
}

void check_casts(const CollectivePart& part) {
  const DType in = part.dtype, wire = part.wire_type(), out = part.out_type();
  check((wire == in && out == in) || (is_floating(in) && is_floating(wire) && is_floating(out)),
        "{} cannot travel as {} and arrive as {}; only floats are cast", name(in), name(wire), name(out));
}

void check_source(const CollectivePart& part) {
  check(part.out_type() == part.dtype || (is_floating(part.out_type()) && is_floating(part.dtype)),
        "a source of {} cannot be gathered as {}; only floats are cast", name(part.dtype), name(part.out_type()));
}

void check_counts(std::span<const std::int64_t> counts, int size, std::int64_t blocks) {
  check(std::cmp_equal(counts.size(), size), "counts has {} entries, the group has {} ranks; give one count per rank",
        counts.size(), size);
  check(blocks >= 1, "a tensor of {} blocks; there is at least one", blocks);
  for (const std::int64_t count : counts)
    check(count >= 0 && count % blocks == 0,
          "a count is {}, of {} blocks; counts must not be negative, and blocks must divide them", count, blocks);
}

void describe(const Collective& c, Fingerprint& call) {
  for (const CollectivePart& part : c.parts) {
    if (c.op == CommOp::all_gather) call.add_part(part.out_type(), part.counts, part.dtype, part.blocks);
    else if (c.op == CommOp::reduce_scatter) call.add_part(part.wire_type(), part.counts, part.dtype, part.blocks);
    else if (c.op == CommOp::all_to_all) call.add_part(part.dtype, {});
    else call.add_part(part.dtype, part.counts);
  }
  if (c.op == CommOp::barrier) call.close_without_list();
  else if (c.op == CommOp::broadcast) call.close_with_root(c.peer);
  else if (c.op == CommOp::reduce_scatter || c.op == CommOp::all_reduce) call.close_with_reduction(c.reduction);
  else call.close();
}

}  // namespace sherd::comm
