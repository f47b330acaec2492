#pragma once
// What a group of the host checks of a call before its ranks meet, and how it tells the call to the others.
#include <cstdint>
#include <span>

#include "runtime/comm/group/collective.h"
#include "runtime/comm/group/fingerprint.h"

namespace sherd::comm {

/// Throws Error if there are elements and no address.
void check_data(const void* data, std::int64_t count);
/// ... unless the part has one count and room for it.
void check_flat(const CollectivePart& part, const void* data);
/// Adds such a part to the call.
void add_flat(Fingerprint& call, const CollectivePart& part, const void* data);
/// ... if the types in which a part of a reduction starts, travels and arrives differ and are not all floats.
void check_casts(const CollectivePart& part);
/// ... the same of a part that is gathered.
void check_source(const CollectivePart& part);
/// ... unless there is one count for each of `size` ranks, none of them negative, which the blocks divide.
void check_counts(std::span<const std::int64_t> counts, int size, std::int64_t blocks = 1);

/// Adds the list of a call of all ranks, and closes it: what ranks compare. Nothing is checked.
void describe(const Collective& call, Fingerprint& fingerprint);

}  // namespace sherd::comm
