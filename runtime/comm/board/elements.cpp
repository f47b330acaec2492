#include "runtime/comm/board/elements.h"

#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "runtime/comm/group/rank_kernels.h"

namespace sherd::comm {

// A whole line at a time, so that the processor never has to merge half-written ones.
void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = std::min<std::size_t>(bytes, -reinterpret_cast<std::uintptr_t>(to) % 64);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    for (std::size_t i = 0; i < 64; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i)));
  }
  std::memcpy(to + at, from + at, bytes - at);
}

void end_stream() { _mm_sfence(); }

std::int64_t copy(void* to, DType to_dtype, const void* from, DType from_dtype, std::int64_t count, bool streams) {
  if (count == 0 || (to == from && to_dtype == from_dtype)) return 0;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const std::int64_t out_size = byte_size(to_dtype), in_size = byte_size(from_dtype);
  if (to_dtype == from_dtype) {
    const auto bytes = static_cast<std::size_t>(count * out_size);
    if (!streams) {
      std::memcpy(out, in, bytes);
    } else {
      stream_bytes(out, in, bytes);
      end_stream();
    }
    return count * out_size;
  }
  const auto cast = rank_kernels().cast_floats;
  if (!streams) {
    cast(to_dtype, out, from_dtype, in, count);
    return count * out_size;
  }
  constexpr std::int64_t kBlock = 1024;
  alignas(64) std::array<std::byte, kBlock * 8> block;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t n = std::min(kBlock, count - at);
    cast(to_dtype, block.data(), from_dtype, in + at * in_size, n);
    stream_bytes(out + at * out_size, block.data(), static_cast<std::size_t>(n * out_size));
  }
  end_stream();
  return count * out_size;
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
