#pragma once
// A library that has what NCCL has and no more, over any group of the host: equal counts of one dtype, NCCL's rules of
// place, sums in an order of its own, maxima that lose a NaN. Device memory goes through the host while the rank's
// thread waits, which no real library does.
#include <memory>

#include "runtime/comm/group/bare_group.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::testing {

/// Its calls are those of `host`, on the lane of their queue. run() and exchange() throw Error where the library would
/// refuse a call, or go wrong.
std::shared_ptr<comm::BareGroup> make_bare_group(std::shared_ptr<ProcessGroup> host);

}  // namespace sherd::testing
