// cuDNN's engines recognise attention by its ops and their order, which are therefore kept exactly as cuDNN's samples
// have them (NVIDIA, cudnn-frontend, scaled dot-product attention); tensors named inside are never in memory.
#include "runtime/cuda/attention/cudnn_attention.h"

namespace sherd::cuda {

namespace {

using Tensor = CudnnAttention::Tensor;
constexpr cudnnDataType_t kF32 = CUDNN_DATA_FLOAT;

cudnnDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF; }

// The graph with the shapes that occur in it. Heads of keys are fewer: products repeat them.
struct Builder {
  const CudnnAttention& a;
  CudnnGraph graph{};
  cudnnDataType_t type = type_of(a.dtype);
  CudnnDims queries{a.b, a.h, a.tq, a.k}, keys{a.b, a.g, a.tk, a.k}, keys_turned{a.b, a.g, a.k, a.tk};
  CudnnDims keys_of_queries{a.b, a.h, a.tk, a.k};  // before the heads of a group are summed
  CudnnDims scores{a.b, a.h, a.tq, a.tk}, scores_turned{a.b, a.h, a.tk, a.tq}, rows{a.b, a.h, a.tq, 1};
  CudnnDims turned_strides{a.h * a.tq * a.tk, a.tq* a.tk, 1, a.tk};
  CudnnDims row_strides{a.h * a.tq, a.tq, 1, 1};

  int heads(CudnnAttentionId id, Tensor which, const CudnnDims& dims) {
    const auto& s = a.of(which);
    return graph.memory(id, type, dims, {s[0], s[1], s[2], 1});
  }
  // [B, G, K, Tk], a view.
  int turned(CudnnAttentionId id, Tensor which) {
    const auto& s = a.of(which);
    return graph.memory(id, type, keys_turned, {s[0], s[1], 1, s[2]});
  }
  int lse() {
    const auto& s = a.of(Tensor::lse);
    return graph.memory(kIdLse, kF32, rows, {s[0], s[1], s[2], 1});
  }
  int inner_scores(cudnnDataType_t t = kF32) { return graph.inner(t, scores); }
  int inner_rows() { return graph.inner(kF32, rows, row_strides); }

  int pointwise(cudnnPointwiseMode_t mode, int x, int b, int y) {
    graph.pointwise(mode, x, b, y);
    return y;
  }
  int pointwise(cudnnPointwiseMode_t mode, int x, int y) {
    graph.pointwise(mode, x, y);
    return y;
  }
  int matmul(int x, int y, int result) {
    graph.matmul(x, y, result);
    return result;
  }
  int reduce(cudnnReduceTensorOp_t op, int x, int y) {
    graph.reduce(op, x, y);
    return y;
  }
  int reshape(int x, int y) {
    graph.reshape(x, y);
    return y;
  }
  // Scores of keys after the query become -infinity.
  int mask(int x) {
    if (!a.causal) return x;
    const int row = inner_scores(CUDNN_DATA_INT32), column = inner_scores(CUDNN_DATA_INT32);
    graph.index_along(2, x, row);
    graph.index_along(3, x, column);
    const int seen = pointwise(CUDNN_POINTWISE_CMP_GE, row, column, inner_scores(CUDNN_DATA_BOOLEAN));
    const int masked = inner_scores();
    graph.select(seen, x, graph.scalar(kIdMinusInfinity), masked);
    return masked;
  }
  // A gradient of keys or values, summed over the heads of a group.
  void key_gradient(int weights_turned, int rows_of_queries, CudnnAttentionId id, Tensor which) {
    const int result = heads(id, which, keys);
    if (a.h == a.g) {
      graph.matmul(weights_turned, rows_of_queries, result);
      return;
    }
    reduce(CUDNN_REDUCE_TENSOR_ADD, matmul(weights_turned, rows_of_queries, graph.inner(type, keys_of_queries)),
           result);
  }
};

}  // namespace

const char* why_not_cudnn(const AttentionShape& s) {
  if (s.dtype != DType::bf16 && s.dtype != DType::f16) return "cuDNN computes attention of bf16 and f16";
  if (s.k % 8 != 0 || s.k > 128) return "cuDNN takes heads of up to 128 elements, in multiples of 8";
  if (s.k == 0 || s.query_rows() == 0 || s.tk == 0 || s.b == 0 || s.g == 0) return "there is nothing to compute";
  if (s.causal && s.tq != s.tk) return "cuDNN's causal mask starts at the first key";
  return nullptr;
}

const char* why_not_cudnn_backward(const AttentionShape& s) {
  if (const char* why = why_not_cudnn(s)) return why;
  return s.tq == 1 && s.tk == 1 ? "cuDNN has no gradients of one query that sees one key" : nullptr;
}

CudnnGraph attention_forward_graph(const CudnnAttention& a) {
  Builder b{a};
  const int q = b.heads(kIdQ, Tensor::q, b.queries), k = b.turned(kIdK, Tensor::k);
  const int v = b.heads(kIdV, Tensor::v, b.keys), scale = b.graph.scalar(kIdScale);
  const int products = b.matmul(q, k, b.inner_scores());
  const int scores = b.mask(b.pointwise(CUDNN_POINTWISE_MUL, products, scale, b.inner_scores()));
  const int largest = b.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, b.inner_rows());
  const int shifted = b.pointwise(CUDNN_POINTWISE_SUB, scores, largest, b.inner_scores());
  const int weights = b.pointwise(CUDNN_POINTWISE_EXP, shifted, b.inner_scores());
  const int total = b.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, b.inner_rows());
  const int log_total = b.pointwise(CUDNN_POINTWISE_LOG, total, b.inner_rows());
  b.pointwise(CUDNN_POINTWISE_ADD, largest, log_total, b.lse());
  const int p = b.pointwise(CUDNN_POINTWISE_DIV, weights, total, b.inner_scores(b.type));
  b.matmul(p, v, b.heads(kIdOut, Tensor::out, b.queries));
  return std::move(b.graph);
}

CudnnGraph attention_backward_graph(const CudnnAttention& a) {
  Builder b{a};
  const int q = b.heads(kIdQ, Tensor::q, b.queries), k_turned = b.turned(kIdK, Tensor::k);
  const int v_turned = b.turned(kIdV, Tensor::v);
  const int out = b.heads(kIdOut, Tensor::out, b.queries), grad = b.heads(kIdGrad, Tensor::grad, b.queries);
  const int scale = b.graph.scalar(kIdScale), one = b.graph.scalar(kIdOne);

  const int products_of_rows = b.pointwise(CUDNN_POINTWISE_MUL, grad, out, b.graph.inner(kF32, b.queries));
  const int sums = b.reduce(CUDNN_REDUCE_TENSOR_ADD, products_of_rows, b.inner_rows());
  const int dots = b.pointwise(CUDNN_POINTWISE_MUL, sums, one, b.graph.memory(kIdDots, kF32, b.rows, b.row_strides));

  const int products = b.matmul(q, k_turned, b.inner_scores());
  const int scores = b.pointwise(CUDNN_POINTWISE_MUL, products, scale, b.inner_scores());
  const int exponents = b.mask(b.pointwise(CUDNN_POINTWISE_SUB, scores, b.lse(), b.inner_scores()));
  const int p = b.pointwise(CUDNN_POINTWISE_EXP, exponents, b.inner_scores());
  const int p_turned = b.reshape(p, b.graph.inner(b.type, b.scores_turned, b.turned_strides));
  b.key_gradient(p_turned, grad, kIdDv, Tensor::dv);

  const int dp = b.matmul(grad, v_turned, b.inner_scores());
  const int dp_shifted = b.pointwise(CUDNN_POINTWISE_SUB, dp, dots, b.inner_scores());
  const int weighted = b.pointwise(CUDNN_POINTWISE_MUL, dp_shifted, p, b.inner_scores());
  const int ds = b.pointwise(CUDNN_POINTWISE_MUL, weighted, scale, b.inner_scores(b.type));
  const int ds_turned = b.reshape(ds, b.graph.inner(b.type, b.scores_turned, b.turned_strides));
  b.key_gradient(ds_turned, q, kIdDk, Tensor::dk);

  const auto& ks = a.of(Tensor::k);
  const int k = b.reshape(k_turned, b.graph.inner(b.type, b.keys, {ks[0], ks[1], ks[2], 1}));
  const int dq = b.heads(kIdDq, Tensor::dq, b.queries);
  if (a.deterministic) {
    b.matmul(ds, k, dq);
  } else {
    const CudnnDims dense{a.h * a.tq * a.k, a.tq * a.k, a.k, 1};
    b.pointwise(CUDNN_POINTWISE_IDENTITY, b.matmul(ds, k, b.graph.memory(kIdDqSum, kF32, b.queries, dense)), dq);
  }
  return std::move(b.graph);
}

}  // namespace sherd::cuda
