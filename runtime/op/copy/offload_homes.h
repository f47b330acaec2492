#pragma once
// Homes for bytes that leave memory for a while and come back, over and over (offload.h has the rows that move them).
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/op/copy/offload.h"

namespace sherd {

/// On a rank's thread. What was ever taken at a time is kept for the next time: homes do not grow in a steady step.
class OffloadHomes {
 public:
  /// As OffloadStore.
  OffloadHomes(Device device, const std::string& folder) : store_(device, folder) {}

  /// A home u8[bytes] of the host that nobody uses: one that is left, or a new one. Its bytes are undefined. It is
  /// taken as long as somebody has a handle on it: the caller, a queue, or a recorded step, which uses it in every
  /// replay. (In the step that is being recorded it may be taken again: the recording knows who comes after whom.)
  /// Errors of OffloadStore::allocate().
  Tensor take(std::int64_t bytes);

  const OffloadStore& store() const { return store_; }

 private:
  struct OfSize {
    std::vector<Tensor> homes;
    std::size_t next = 0;  // where the search goes on: steps take and give in turn
  };
  OffloadStore store_;
  std::map<std::int64_t, OfSize> sizes_;
};

}  // namespace sherd
