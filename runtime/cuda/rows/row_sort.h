#pragma once
// Positions of an index list grouped by the row they name, in order within a row: what a deterministic scatter needs.
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/faults.h"
#include "runtime/op/rows/id_shard.h"

namespace sherd::cuda {

/// Row r is named by positions()[starts()[r]], ..., positions()[starts()[r + 1] - 1]. Device memory, queued.
class RowSort {
 public:
  /// `ids`: `count` dense i32 or i64 values; row r has the id rows.first + r. Ids that are not here are left out, those
  /// that do not exist also reported to `faults`. Error for 2^31 ids or rows and more.
  RowSort(Context& context, const void* ids, DType dtype, std::int64_t count, const IdShard& rows,
          const FaultSink& faults);
  const std::uint32_t* starts() const { return starts_; }
  const std::uint32_t* positions() const { return positions_; }

 private:
  Workspace memory_;
  std::uint32_t *starts_ = nullptr, *positions_ = nullptr;
};

/// Element i of a dense list of indices.
__device__ inline std::int64_t read_id(const void* ids, bool wide, std::int64_t i) {
  return wide ? static_cast<const std::int64_t*>(ids)[i] : static_cast<const std::int32_t*>(ids)[i];
}

}  // namespace sherd::cuda
