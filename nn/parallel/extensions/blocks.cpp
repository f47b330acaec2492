#include "nn/parallel/extensions/blocks.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <type_traits>

#include "runtime/cpu/parallel.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {

// ---- the loops ----

constexpr std::int64_t kChunk = 64;     // of a constant length, so that the compiler makes vectors of it
constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: added, it leaves the nearest integer in the low bits
constexpr float kLeast = 1e-30f;        // of a block's largest |x|: 127 over it is finite
constexpr std::int32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;

/// Calls fn(at, length) for pieces of `count` elements; the length is a constant for all but the last.
template <class Fn>
void for_chunks(std::int64_t count, const Fn& fn) {
  std::int64_t at = 0;
  for (; at + kChunk <= count; at += kChunk) fn(at, std::integral_constant<std::int64_t, kChunk>{});
  if (at < count) fn(at, count - at);
}

// Magnitudes of floats are in the order of their bits, where infinities and NaNs are the largest.
template <class T, class Length>
void take_magnitudes(const T* __restrict x, Length length, std::int32_t* __restrict largest) {
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(convert<float>(x[i])) & kMagnitude;
    largest[i] = magnitude > largest[i] ? magnitude : largest[i];
  }
}

template <class T, class Length>
void quantize_chunk(const T* __restrict x, Length length, float inverse, std::uint8_t* __restrict values) {
  for (std::int64_t i = 0; i < length; ++i) {
    const float steps = convert<float>(x[i]) * inverse + kRounds;
    values[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(steps) + 128u);
  }
}

/// Returns the scale.
template <class T>
float quantize_block(const T* x, std::int64_t count, std::uint8_t* values) {
  std::int32_t magnitudes[kChunk] = {};
  for_chunks(count, [&](std::int64_t at, auto length) { take_magnitudes(x + at, length, magnitudes); });
  const std::int32_t bits = *std::max_element(std::begin(magnitudes), std::end(magnitudes));
  const auto largest = std::bit_cast<float>(bits);
  const bool is_finite = bits < kInfinity, is_zero = largest < kLeast;
  const float inverse = is_finite && !is_zero ? 127.0f / largest : 0.0f;
  for_chunks(count, [&](std::int64_t at, auto length) { quantize_chunk(x + at, length, inverse, values + at); });
  if (!is_finite) return std::numeric_limits<float>::quiet_NaN();
  return is_zero ? 0.0f : largest / 127.0f;
}

float value_of(std::uint8_t value, float scale) { return static_cast<float>(static_cast<int>(value) - 128) * scale; }

template <class T, class Length>
void dequantize_chunk(const std::uint8_t* __restrict values, Length length, float scale, T* __restrict out) {
  for (std::int64_t i = 0; i < length; ++i) out[i] = convert<T>(value_of(values[i], scale));
}

template <class Length>
void add_chunk(const std::uint8_t* __restrict values, Length length, float scale, float* __restrict sum) {
  for (std::int64_t i = 0; i < length; ++i) sum[i] += value_of(values[i], scale);
}

/// Calls fn(first, count, which) for the blocks of `count` elements.
template <class Fn>
void for_blocks(std::int64_t count, int block, const Fn& fn) {
  std::int64_t which = 0;
  for (std::int64_t at = 0; at < count; at += block) fn(at, std::min<std::int64_t>(block, count - at), which++);
}

template <class Fn>
void visit_quantizable(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::f32: return fn(Type<float>{});
    case DType::bf16: return fn(Type<bf16>{});
    case DType::f16: return fn(Type<f16>{});
    default: fail("{} is not quantised; f32, bf16 and f16 are", name(dtype));
  }
}

// ---- the rows ----

struct QuantizeAttrs {
  int block = kQuantizationBlock;
  static constexpr AttrField fields[] = {attr<&QuantizeAttrs::block>("block")};
};
struct DequantizeAttrs {
  Shape shape;
  DType dtype = DType::f32;
  int block = kQuantizationBlock;
  static constexpr AttrField fields[] = {attr<&DequantizeAttrs::shape>("shape"), attr<&DequantizeAttrs::dtype>("dtype"),
                                         attr<&DequantizeAttrs::block>("block")};
};

Metas infer_quantize(const InferCall& call) {
  const int block = call.attrs.as<QuantizeAttrs>().block;
  check_block(block, call.op.name);
  const TensorMeta& x = required(call, 0);
  check(is_quantizable(x.dtype), "{} of {}; it takes f32, bf16 and f16", call.op.name, x);
  check(x.is_contiguous(), "{}: {} with strides {} is not dense", call.op.name, x, x.strides);
  Metas metas;
  metas.push_back({.shape = {x.numel()}, .dtype = DType::u8});
  metas.push_back({.shape = {num_blocks(x.numel(), block)}, .dtype = DType::f32});
  return metas;
}

Metas infer_dequantize(const InferCall& call) {
  const auto& a = call.attrs.as<DequantizeAttrs>();
  check_block(a.block, call.op.name);
  const TensorMeta &values = required(call, 0), &scales = required(call, 1);
  const std::int64_t count = numel(a.shape);
  check(values.dtype == DType::u8 && values.numel() == count && values.is_contiguous() && scales.dtype == DType::f32 &&
            scales.numel() == num_blocks(count, a.block) && scales.is_contiguous(),
        "{} to {}{} in blocks of {}: values are {}, scales {}; they are u8[{}] and f32[{}]", call.op.name,
        name(a.dtype), a.shape, a.block, values, scales, count, num_blocks(count, a.block));
  check(is_quantizable(a.dtype), "{} to {}; it makes f32, bf16 and f16", call.op.name, name(a.dtype));
  return one_output(a.shape, a.dtype);
}

constexpr std::int64_t kGrain = 64;  // blocks per chunk of work: some 5 us

void run_quantize(const KernelCall& call) {
  const Tensor& x = call.in[0];
  const std::int64_t block = call.attrs.as<QuantizeAttrs>().block, count = x.numel(), size = byte_size(x.dtype());
  const auto* const from = static_cast<const std::byte*>(x.raw());
  auto* const values = static_cast<std::uint8_t*>(call.out[0].raw());
  auto* const scales = static_cast<float*>(call.out[1].raw());
  parallel_for(num_blocks(count, static_cast<int>(block)), kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * block, last = std::min(end * block, count);
    quantize_on_host(x.dtype(), from + first * size, last - first, static_cast<int>(block), values + first,
                     scales + begin);
  });
}

void run_dequantize(const KernelCall& call) {
  const Tensor& out = call.out[0];
  const std::int64_t block = call.attrs.as<DequantizeAttrs>().block, count = out.numel(), size = byte_size(out.dtype());
  const auto* const values = static_cast<const std::uint8_t*>(call.in[0].raw());
  const auto* const scales = static_cast<const float*>(call.in[1].raw());
  auto* const to = static_cast<std::byte*>(out.raw());
  parallel_for(num_blocks(count, static_cast<int>(block)), kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * block, last = std::min(end * block, count);
    dequantize_on_host(values + first, scales + begin, last - first, static_cast<int>(block), out.dtype(),
                       to + first * size);
  });
}

constinit const Op kQuantizeBlocks{
    .name = "quantize_blocks",
    .doc = "x in blocks of equal length -> values u8[elements] and one scale for each block, f32[blocks].",
    .attrs = &attr_kind<QuantizeAttrs>,
    .infer = infer_quantize,
    .no_gradient = "integer result",
};
constinit const Op kDequantizeBlocks{
    .name = "dequantize_blocks",
    .doc = "What values u8[elements] and scales f32[blocks] of quantize_blocks stand for, in a shape and a type.",
    .attrs = &attr_kind<DequantizeAttrs>,
    .infer = infer_dequantize,
    .no_gradient = "integer inputs",
};

void register_blocks(OpTable& table) {
  table.add({&kQuantizeBlocks, &kDequantizeBlocks});
  table.kernel(kQuantizeBlocks, Device::Kind::cpu, run_quantize);
  table.kernel(kDequantizeBlocks, Device::Kind::cpu, run_dequantize);
}

}  // namespace

bool is_quantizable(DType dtype) { return is_floating(dtype) && dtype != DType::f64; }

void check_block(int block, std::string_view what) {
  check(block >= 64 && block <= 4096 && block % 64 == 0, "{}: blocks of {} elements; give a multiple of 64 up to 4096",
        what, block);
}

void quantize_on_host(DType dtype, const std::byte* x, std::int64_t count, int block, std::uint8_t* values,
                      float* scales) {
  visit_quantizable(dtype, [&]<class T>(Type<T>) {
    const T* const from = reinterpret_cast<const T*>(x);
    for_blocks(count, block, [&](std::int64_t first, std::int64_t length, std::int64_t which) {
      scales[which] = quantize_block(from + first, length, values + first);
    });
  });
}

void dequantize_on_host(const std::uint8_t* values, const float* scales, std::int64_t count, int block, DType dtype,
                        std::byte* out) {
  visit_quantizable(dtype, [&]<class T>(Type<T>) {
    T* const to = reinterpret_cast<T*>(out);
    for_blocks(count, block, [&](std::int64_t first, std::int64_t length, std::int64_t which) {
      for_chunks(length, [&](std::int64_t at, auto n) {
        dequantize_chunk(values + first + at, n, scales[which], to + first + at);
      });
    });
  });
}

void add_dequantized_on_host(const std::uint8_t* values, const float* scales, std::int64_t count, int block,
                             float* sum) {
  for_blocks(count, block, [&](std::int64_t first, std::int64_t length, std::int64_t which) {
    for_chunks(length,
               [&](std::int64_t at, auto n) { add_chunk(values + first + at, n, scales[which], sum + first + at); });
  });
}

QuantizedBlocks quantize_blocks(const Tensor& x, int block) {
  add_rows(register_blocks);
  Tensor in[] = {contiguous(x)};
  Tensors out = call_op(kQuantizeBlocks, in, QuantizeAttrs{block});
  return {std::move(out[0]), std::move(out[1])};
}

void dequantize_blocks_into(const Tensor& out, const Tensor& values, const Tensor& scales, int block) {
  add_rows(register_blocks);
  const DequantizeAttrs attrs{out.shape(), out.dtype(), block};
  if (out.is_contiguous()) return call_into(kDequantizeBlocks, attrs, out, false, values, scales);
  copy_into(out, call(kDequantizeBlocks, attrs, values, scales));
}

}  // namespace sherd::nn
