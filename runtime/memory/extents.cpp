#include "runtime/memory/extents.h"

#include <algorithm>

namespace sherd {

std::int64_t Extents::take(std::int64_t bytes) {
  const auto place = std::ranges::find_if(free_, [bytes](const Extent& e) { return e.bytes >= bytes; });
  if (place == free_.end()) return kNone;
  const std::int64_t offset = place->offset;
  if (place->bytes == bytes) free_.erase(place);
  else *place = {offset + bytes, place->bytes - bytes};
  return offset;
}

void Extents::give(std::int64_t offset, std::int64_t bytes) {
  const auto after = std::ranges::lower_bound(free_, offset, {}, &Extent::offset);
  const bool meets_after = after != free_.end() && offset + bytes == after->offset;
  const bool meets_before = after != free_.begin() && after[-1].offset + after[-1].bytes == offset;
  if (meets_before && meets_after) {
    after[-1].bytes += bytes + after->bytes;
    free_.erase(after);
  } else if (meets_before) {
    after[-1].bytes += bytes;
  } else if (meets_after) {
    *after = {offset, bytes + after->bytes};
  } else {
    free_.insert(after, {offset, bytes});
  }
}

}  // namespace sherd
