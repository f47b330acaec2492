// A backend's library from other sources: the right ABI number, another layout. Nothing may be called in it.
#include <cstdlib>

#include "runtime/op/core/device_library.h"

extern "C" __attribute__((visibility("default"))) const sherd::BackendEntry* sherd_backend() {
  static const sherd::BackendEntry entry{sherd::BackendEntry::kAbi, 0x0123456789abcdef,
                                         []() -> sherd::Backend* { std::abort(); }};
  return &entry;
}
