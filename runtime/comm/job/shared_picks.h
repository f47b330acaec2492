#pragma once
// Picks of a job (exec/picks.h) over the store of its ranks.
#include <functional>

#include "runtime/comm/store/store.h"
#include "runtime/exec/picks.h"

namespace sherd {

/// The first rank that asks for a key makes the pick; the others wait for it, at most half a minute, and then make
/// their own: that rank may wait for one of them. `store` returns null when the job is over.
Picks::Share share_over(std::function<std::shared_ptr<Store>()> store);

/// Shares among ranks that are threads of one process: every copy with the others.
Picks::Share share_among_threads();

}  // namespace sherd
