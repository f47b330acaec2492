#pragma once
// Attention as cuDNN graphs: which calls cuDNN takes, the graphs, and the names of their tensors.
#include <array>

#include "runtime/cuda/attention/attention_kernels.h"
#include "runtime/cuda/attention/cudnn_graph.h"

namespace sherd::cuda {

/// What a plan depends on. Letters as in attention_kernels.h.
struct CudnnAttention {
  enum class Tensor : std::uint8_t { q, k, v, out, grad, dq, dk, dv, lse };
  static constexpr int kNumTensors = 9;
  using HeadStrides = std::array<std::int64_t, 3>;  // batch, head, row

  DType dtype = DType::bf16;
  std::int64_t b = 0, h = 0, g = 0, tq = 0, tk = 0, k = 0;
  bool causal = true, deterministic = false;
  std::array<HeadStrides, kNumTensors> strides{};
  const HeadStrides& of(Tensor t) const { return strides[static_cast<std::size_t>(t)]; }
  auto operator<=>(const CudnnAttention&) const = default;
};

/// Tensors of the graphs, as arguments of a plan.
enum CudnnAttentionId : std::int64_t {
  kIdQ = 1,
  kIdK,
  kIdV,
  kIdOut,
  kIdLse,
  kIdGrad,
  kIdDq,
  kIdDk,
  kIdDv,
  kIdScale,
  kIdMinusInfinity,
  kIdOne,  // f32 of the host
  kIdDots,
  kIdDqSum,  // workspace of the backward graph: f32 [B, H, Tq], f32 [B, H, Tq, K]
};

/// Why cuDNN is not asked for this call; null if it is.
const char* why_not_cudnn(const AttentionShape& shape);
const char* why_not_cudnn_backward(const AttentionShape& shape);

/// q k^T, mask, softmax with its log-sum-exp, times v.
CudnnGraph attention_forward_graph(const CudnnAttention& a);
/// The gradients of q, k and v. The order in which dQ is summed is not fixed unless `deterministic`, which costs b h tq
/// tk elements of workspace.
CudnnGraph attention_backward_graph(const CudnnAttention& a);

}  // namespace sherd::cuda
