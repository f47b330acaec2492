#pragma once
#include "runtime/op/core/op.h"

namespace sherd::cpu {

/// Kernel of rotary positions; registered with attention.
void register_rope(OpTable& table);

}  // namespace sherd::cpu
