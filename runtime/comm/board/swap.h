#pragma once
// all_to_all: every rank sends a part of its tensors to every rank.
#include <span>

#include "runtime/comm/board/board.h"
#include "runtime/comm/group/host_group.h"

namespace sherd::comm {

/// Runs inside a call that has been entered. Fails the group if a rank expects a count other than its peer sends.
void swap_parts(Board& board, std::span<const SwapPart> parts);

}  // namespace sherd::comm
