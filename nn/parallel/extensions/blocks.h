#pragma once
// Block quantisation: the elements of a tensor in blocks of equal length, each as 8 bits and a scale of its own
// (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", here with even steps; ZeRO++, Wang et al.
// 2023, gathers weights and reduces gradients so).
//
//   x       | block 0 ........ | block 1 ........ | rest |      n elements
//   values  | 128 + round(x / scale) ...................|      u8 [n], 1 to 255
//   scales  | s0               | s1               | s2   |      f32 [ceil(n / block)]: largest |x| of the block / 127
//
// An element comes back with an error of at most half a step, the block's largest |x| / 254. A block whose largest |x|
// is below 1e-30 comes back as zeros, one with a value that is not finite as NaNs: loss scaling sees them.
#include <cstdint>

#include "runtime/op/core/tensor.h"

namespace sherd::nn {

/// Elements that share a scale: 4 bytes for 256 are 1.6 % more than 8 bits.
inline constexpr int kQuantizationBlock = 256;

/// How many blocks, and scales, `elements` have.
constexpr std::int64_t num_blocks(std::int64_t elements, int block) { return (elements + block - 1) / block; }
/// Whether there are kernels for elements of this type: f32, bf16 and f16.
bool is_quantizable(DType dtype);

struct QuantizedBlocks {
  Tensor values;  ///< u8 [x.numel()]
  Tensor scales;  ///< f32 [num_blocks(x.numel(), block)]
};
/// Quantizes a plain tensor on the host, in row-major order. Error unless is_quantizable(), or if `block` is no
/// multiple of 64 from 64 to 4096. Has no gradient.
QuantizedBlocks quantize_blocks(const Tensor& x, int block = kQuantizationBlock);
/// Writes what they stand for into `out`, which is quantizable and has as many elements.
void dequantize_blocks_into(const Tensor& out, const Tensor& values, const Tensor& scales,
                            int block = kQuantizationBlock);

// The same on memory of the host, for work that runs on a queue. `count` elements begin a block.
void quantize_on_host(DType dtype, const std::byte* x, std::int64_t count, int block, std::uint8_t* values,
                      float* scales);
void dequantize_on_host(const std::uint8_t* values, const float* scales, std::int64_t count, int block, DType dtype,
                        std::byte* out);
/// Adds them to `sum`.
void add_dequantized_on_host(const std::uint8_t* values, const float* scales, std::int64_t count, int block,
                             float* sum);

/// Error naming `what` unless a block may have this length.
void check_block(int block, std::string_view what);

}  // namespace sherd::nn
