#pragma once
// Do libsherd.so and a backend's library mean the same by every struct, virtual function and enumerator that crosses
// their border? Both are compiled with one number: a hash of the text of all headers of runtime/, which the build
// makes (cmake/header_hash.cmake), and of the sizes that compiler and flags give some of the types in them.
#include <cstddef>
#include <cstdint>

#include "runtime/exec/backend.h"
#include "runtime/op/core/op.h"

namespace sherd {

/// Evaluated where it is compiled: if it were an ordinary function, both would call one library's and never differ.
consteval std::uint64_t layout_fingerprint(std::uint64_t header_hash) {
  std::uint64_t hash = header_hash;
  for (const std::size_t size :
       {sizeof(Op), sizeof(RowKernels), sizeof(KernelCall), sizeof(TensorImpl), sizeof(Storage), sizeof(AttrsView),
        sizeof(Allocator), sizeof(DeviceContext), sizeof(BackendFact)})
    hash = (hash ^ size) * 1099511628211u;  // FNV-1a
  return hash;
}

}  // namespace sherd
