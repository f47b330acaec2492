#include "nn/checkpoint/local_rows.h"

#include "dtensor/spec.h"
#include "nn/checkpoint/manifest.h"

namespace sherd::nn {

LocalRows local_rows(const Tensor& value) {
  if (!value.is_distributed()) return {0, row_count(value.shape())};
  const Spec& spec = Spec::from(value);
  for (int d = 1; d < value.ndim(); ++d)
    check(spec.axes_of(d).empty(), "checkpoint: {} is split along dim {}; only dim 0 is supported", describe(value), d);
  const Spec::Range range = spec.local_range(0, value.size(0));
  return {range.begin, range.size()};
}

}  // namespace sherd::nn
