#pragma once
// Attributes of rows that make tensors on a device.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct FullAttrs {
  Shape shape;
  double value = 0;
  DType dtype = DType::f32;
  Device device{};
  static constexpr AttrField fields[] = {attr<&FullAttrs::shape>("shape"), attr<&FullAttrs::value>("value"),
                                         attr<&FullAttrs::dtype>("dtype"),
                                         attr<&FullAttrs::device>("device").optional()};
};
struct ArangeAttrs {
  std::int64_t count = 0;
  DType dtype = DType::i64;
  Device device{};
  static constexpr AttrField fields[] = {attr<&ArangeAttrs::count>("count"), attr<&ArangeAttrs::dtype>("dtype"),
                                         attr<&ArangeAttrs::device>("device").optional()};
};
struct TransferAttrs {  ///< to_device
  Device device;
  static constexpr AttrField fields[] = {attr<&TransferAttrs::device>("device")};
};

}  // namespace sherd
