#pragma once
// Bytes on loan to work that can do without them: a save that goes on while a step changes what it saves.
#include "runtime/memory/event.h"

namespace sherd {

class Storage;

/// For who is about to write or free the bytes of `storage`, which the work before `read` reads: asks that work to do
/// without them. True: it no longer looks at them there, and need not be waited for; it may have copied them, on this
/// thread. False: it has to be waited for. On the rank's thread. exec/queue.cpp implements it.
bool let_go(const Event& read, const Storage& storage);

}  // namespace sherd
