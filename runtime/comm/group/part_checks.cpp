#include "runtime/comm/group/part_checks.h"

#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::comm {

void check_data(const void* data, std::int64_t count) {
  check(data != nullptr || count == 0, "the data pointer is null but there are {} elements", count);
}

void add_flat(Fingerprint& call, const CollectivePart& part, const void* data) {
  check(part.counts.size() == 1, "a tensor has {} counts, it takes one", part.counts.size());
  const std::int64_t count = part.counts[0];
  check(count >= 0, "the count is {}; counts must not be negative", count);
  check_data(data, count);
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

}  // namespace sherd::comm
