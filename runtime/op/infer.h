#pragma once
// What the rows' infer functions share: access to inputs that must be there, and one-output results.
#include "runtime/op/op.h"

namespace sherd {

/// Input i of the call; throws Error if it is undefined.
inline const Tensor& required(const InferCall& call, std::size_t i) {
  check(i < call.in.size() && call.in[i].defined(), "input {} of {} is undefined", i, call.op.name);
  return call.in[i];
}

inline Metas one_output(const Shape& shape, DType dtype) {
  Metas metas;
  TensorMeta& meta = metas.emplace_back();
  meta.shape = shape;
  meta.dtype = dtype;
  return metas;
}

/// infer of rows whose result looks like input 0.
inline Metas infer_like_first(const InferCall& call) {
  const Tensor& x = required(call, 0);
  return one_output(x.shape(), x.dtype());
}

}  // namespace sherd
