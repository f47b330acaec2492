#pragma once
// Which rows of a whole tensor a rank holds: what it saves and what it reads.
#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace sherd::nn {

struct LocalRows {
  std::int64_t offset = 0, count = 0;
};

/// All rows of a plain tensor (a 0-d one has one). Error if a dim other than 0 is split.
LocalRows local_rows(const Tensor& value);

}  // namespace sherd::nn
