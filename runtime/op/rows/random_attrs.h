#pragma once
// Attributes of random rows.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"
#include "runtime/op/rows/element_runs.h"

namespace sherd {

/// Random rows: `key` hashes (seed, module path or parameter name, purpose, call index); element i of the result is
/// drawn for global element first + i. The optional 0-d i64 tensor input is the step and goes into the counter.
struct RandomAttrs {
  Shape shape;
  DType dtype = DType::f32;
  std::uint64_t key = 0;
  std::int64_t first = 0;
  float a = 0, b = 1;  ///< normal: mean, std; uniform: low, high
  Device device{};
  ElementRuns runs{};
  static constexpr AttrField fields[] = {attr<&RandomAttrs::shape>("shape"),
                                         attr<&RandomAttrs::dtype>("dtype"),
                                         attr<&RandomAttrs::key>("key"),
                                         attr<&RandomAttrs::first>("first").local(),
                                         attr<&RandomAttrs::a>("a"),
                                         attr<&RandomAttrs::b>("b"),
                                         attr<&RandomAttrs::device>("device").optional(),
                                         attr<&RandomAttrs::runs>().optional()};
};
struct DropoutAttrs {
  float p = 0;
  std::uint64_t key = 0;
  std::int64_t first = 0;  ///< global index of the first element
  ElementRuns runs{};
  /// Elements of the whole, of which this tensor is a part; 0: not said. It selects the stream together with the key:
  /// ranks that take their parts for those of different wholes draw independent masks, wherever their parts begin.
  std::int64_t all = 0;
  static constexpr AttrField fields[] = {
      attr<&DropoutAttrs::p>("p"), attr<&DropoutAttrs::key>("key"), attr<&DropoutAttrs::first>("first").local(),
      attr<&DropoutAttrs::runs>().optional(), attr<&DropoutAttrs::all>("all").local().optional()};

  /// The key that draws: of `key` and `all`.
  std::uint64_t stream_key() const;
};

}  // namespace sherd
