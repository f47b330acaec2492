// Elements of one float type as another, dense to dense: what transports do to data on its way.
#include "runtime/cpu/kernels.h"

namespace sherd::cpu {

namespace {

// The constant length is what lets the compiler vectorise without a runtime check of the count.
constexpr std::int64_t kBlock = 64;

template <class To, class From>
void cast_all(To* __restrict to, const From* __restrict from, std::int64_t count) {
  std::int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock)
    for (std::int64_t i = 0; i < kBlock; ++i) to[at + i] = convert<To>(from[at + i]);
  for (; at < count; ++at) to[at] = convert<To>(from[at]);
}

}  // namespace

void cast_floats(DType to_dtype, void* to, DType from_dtype, const void* from, std::int64_t count) {
  visit_floating(to_dtype, [&]<class To>(Type<To>) {
    visit_floating(from_dtype, [&]<class From>(Type<From>) {
      cast_all(static_cast<To*>(to), static_cast<const From*>(from), count);
    });
  });
}

}  // namespace sherd::cpu
