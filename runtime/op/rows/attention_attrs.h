#pragma once
// Attributes of attention and rotary positions.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct AttentionAttrs {
  double scale = 1;
  bool causal = true;
  static constexpr AttrField fields[] = {attr<&AttentionAttrs::scale>("scale"),
                                         attr<&AttentionAttrs::causal>("causal")};
};
struct RopeAttrs {
  double theta = 10000;
  std::int64_t first_position = 0;
  bool inverse = false;  ///< rotates back: the vjp
  static constexpr AttrField fields[] = {attr<&RopeAttrs::theta>("theta"),
                                         attr<&RopeAttrs::first_position>("first").local(),
                                         attr<&RopeAttrs::inverse>("inverse")};
};

}  // namespace sherd
