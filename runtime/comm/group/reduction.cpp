#include "runtime/comm/group/reduction.h"

#include "runtime/tensor/error.h"

namespace sherd::comm {

Reduction reduction_of(const ReduceOptions& options, int size, DType dtype) {
  const double factor = options.kind == ReduceKind::avg ? options.scale / size : options.scale;
  return {.kind = options.kind, .factor = factor, .accumulate = false, .in = dtype, .wire = dtype, .out = dtype};
}

Reduction reduction_of(const ReduceOptions& options, int size, const CollectivePart& part) {
  Reduction reduction = reduction_of(options, size, part.dtype);
  reduction.accumulate = part.accumulate;
  reduction.wire = part.wire_type();
  reduction.out = part.out_type();
  return reduction;
}

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

}  // namespace sherd::comm
