#include "runtime/comm/group/group_kernels.h"

#include <cstring>

#include "runtime/comm/group/rank_kernels.h"
#include "runtime/exec/backend.h"
#include "runtime/tensor/error.h"

namespace sherd::comm {

namespace {

void move_on_host(std::span<const ListMove> list, Queue&) {
  for (const ListMove& m : list) {
    const std::int64_t to_size = byte_size(m.to_dtype), from_size = byte_size(m.from_dtype);
    for (std::int64_t b = 0; m.run > 0 && b < m.blocks; ++b) {
      auto* const to = static_cast<std::byte*>(m.to) + b * m.to_step * to_size;
      const auto* const from = static_cast<const std::byte*>(m.from) + b * m.from_step * from_size;
      if (m.to_dtype == m.from_dtype) std::memcpy(to, from, static_cast<std::size_t>(m.run * to_size));
      else rank_kernels().cast_floats(m.to_dtype, to, m.from_dtype, from, m.run);
    }
  }
}

void sum_on_host(std::span<const ListSum> list, Queue&) {
  for (const ListSum& s : list)
    if (s.count > 0) rank_kernels().reduce_ranks(s.inputs, s.out, s.count, s.reduction, /*streams=*/false);
}

constexpr GroupKernels kOnHost{move_on_host, sum_on_host};

}  // namespace

const GroupKernels& group_kernels(Device device) {
  if (device == Device::cpu()) return kOnHost;
  const GroupKernels* const kernels = backend_of(device).group_kernels();
  check(kernels != nullptr, "collectives on {} cannot be composed: its backend has no kernels for them",
        to_string(device));
  return *kernels;
}

}  // namespace sherd::comm
