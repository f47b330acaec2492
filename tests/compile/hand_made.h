#pragma once
// Programs of a few nodes, made by hand.
#include <initializer_list>

#include "compile/ir/analysis/numbers.h"
#include "compile/ir/program.h"
#include "runtime/op/attrs/attrs.h"
#include "runtime/op/core/rows.h"

namespace sherd::testing {

using namespace ir;

inline const Shape kSquare{2, 2};

inline TensorRef whole(ValueId value, const Shape& shape = kSquare) {
  return {value, DType::f32, shape, contiguous_strides(shape), 0};
}
/// Row i of a [2, 2] value.
inline TensorRef row_of(ValueId value, std::int64_t i) { return {value, DType::f32, {2}, {1}, 2 * i}; }

/// Values 0 .. arguments - 1 are arguments, the rest temporaries; all are f32 [2, 2].
inline Program program_of(int arguments, int temporaries) {
  Program program;
  for (int i = 0; i < arguments + temporaries; ++i) {
    Value& value = program.values.emplace_back();
    value.kind = i < arguments ? ValueKind::argument : ValueKind::temporary;
    value.source = i < arguments ? i : -1;
    value.bytes = 16;
    value.home = whole(i);
  }
  program.arguments.resize(static_cast<std::size_t>(arguments));
  return program;
}

inline GraphNode& add(Program& program, const Op& op, std::initializer_list<TensorRef> in,
                      std::initializer_list<TensorRef> out, const Attrs& attrs = {}) {
  GraphNode& node = program.nodes.emplace_back();
  node.op = &op;
  node.attrs = attrs;
  for (const TensorRef& ref : in) node.in.push_back(ref);
  for (const TensorRef& ref : out) node.out.push_back(ref);
  return node;
}

inline void finish(Program& program, std::initializer_list<TensorRef> results) {
  for (const TensorRef& ref : results) {
    GraphResult& result = program.results.emplace_back();
    result.local = ref;
    result.shape = ref.shape;
  }
  compute_lifetimes(program);
  write_numbers(program);
}

}  // namespace sherd::testing
