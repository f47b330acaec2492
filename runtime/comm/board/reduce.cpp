#include "runtime/comm/board/reduce.h"

#include <cstring>

#include "runtime/comm/group/rank_kernels.h"

namespace sherd::comm {

void check_reducible(DType dtype, const ReduceOptions& options) {
  if (dtype == DType::boolean) {
    check(options.kind == ReduceKind::max || options.kind == ReduceKind::min,
          "{} of bool is not defined; use max (any) or min (all), or cast to i64 first", name(options.kind));
  }
  if (!is_floating(dtype)) {
    check(options.kind != ReduceKind::avg && options.scale == 1.0,
          "{} times {} of {} is not exact; use sum with scale 1, or cast to a float type first", name(options.kind),
          options.scale, name(dtype));
  }
}

void reduce(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count, const Reduction& reduction,
            bool streams) {
  if (count == 0) return;
  const bool is_plain = reduction.in == reduction.wire && reduction.in == reduction.out;
  if (inputs.size() == 1 && reduction.factor == 1.0 && !reduction.accumulate && is_plain) {
    if (inputs[0] != out) std::memmove(out, inputs[0], static_cast<std::size_t>(count * byte_size(reduction.in)));
    return;
  }
  rank_kernels().reduce_ranks(inputs, out, count, reduction, streams);
}

}  // namespace sherd::comm
