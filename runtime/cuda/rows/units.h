#pragma once
// Elements moved without a look at what they are: unsigned units of 1 to 16 bytes.
#include "runtime/cuda/device/device.h"

namespace sherd::cuda {

struct alignas(16) Unit16 {
  std::uint64_t words[2];
};

/// Calls fn(Type<U>{}) with a unit of `bytes` bytes. Host code.
template <class Fn>
void visit_unit(std::int64_t bytes, const Fn& fn) {
  switch (bytes) {
    case 1: return fn(Type<std::uint8_t>{});
    case 2: return fn(Type<std::uint16_t>{});
    case 4: return fn(Type<std::uint32_t>{});
    case 8: return fn(Type<std::uint64_t>{});
    default: return fn(Type<Unit16>{});
  }
}

}  // namespace sherd::cuda
