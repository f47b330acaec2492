#pragma once
// What the rows' infer functions share: access to inputs that must be there, and one-output results.
#include "runtime/op/core/op.h"

namespace sherd {

[[noreturn]] inline void fail_undefined(const InferCall& call, std::size_t i) {
  fail("input {} of {} is undefined", i, call.op.name);
}

/// Input i of the call; throws Error if it is undefined.
inline const TensorMeta& required(const InferCall& call, std::size_t i) {
  const TensorMeta& meta = call.in[i];
  if (!meta.defined()) [[unlikely]]
    fail_undefined(call, i);
  return meta;
}

inline Metas one_output(const Shape& shape, DType dtype) {
  Metas metas;
  metas.emplace_back(shape, dtype);
  return metas;
}

/// infer of rows whose result looks like input 0.
inline Metas infer_like_first(const InferCall& call) {
  const TensorMeta& x = required(call, 0);
  return one_output(x.shape, x.dtype);
}

}  // namespace sherd
