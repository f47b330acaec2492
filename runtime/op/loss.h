#pragma once
// How linear_cross_entropy cuts its rows: forward and backward use the same chunks, so the logits that backward
// computes again have the same bits.
#include <algorithm>
#include <cstdint>

#include "runtime/tensor/device.h"

namespace sherd {

/// Rows of logits held at a time for `vocabulary` columns. On the CPU 128 to 1024, at most 8 M elements where that is
/// possible; on a device, whose products of fewer rows are bound by reading the weight, 1024 to 4096 and 256 M
/// elements.
constexpr std::int64_t loss_chunk_rows(std::int64_t vocabulary, Device::Kind kind = Device::Kind::cpu) {
  const std::int64_t columns = std::max<std::int64_t>(vocabulary, 1);
  if (kind == Device::Kind::cpu) return std::clamp<std::int64_t>((std::int64_t{1} << 23) / columns, 128, 1024);
  constexpr std::int64_t kStep = 1024;
  return std::clamp<std::int64_t>((std::int64_t{1} << 28) / columns / kStep * kStep, kStep, 4096);
}

}  // namespace sherd
