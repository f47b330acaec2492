#pragma once
// Rows that bring bytes into the memory of a rank for a while, and take them back, beside its compute:
//
//   fetch(homes...) -> u8[bytes]      a copy of the homes, each at the next multiple of 64: a fresh tensor
//   evict(homes..., from)             the same bytes back: the homes are written
//
// A home is a dense tensor of the host whose bytes are in no account: of a file (memory/offload_file.h), or of memory
// that a device copies from and to by itself. What is fetched for the host is the work of the queue "disk", what is
// fetched for a device that of its queue "offload". Nothing here waits for what it starts: who touches the bytes does.
// Homes are storages as any other: a fetch comes after the evict before it because of what it reads, and a replay finds
// the homes in their slots.
//
//   rank's thread   fetch 0 | fetch 1 | update 0 | evict 0 | fetch 2 | update 1 | evict 1 ...
//   disk            [ 0 in ][ 1 in   ]           [ 0 out  ][ 2 in   ]           [ 1 out  ]
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/offload_file.h"
#include "runtime/op/attr_kind.h"
#include "runtime/op/op.h"

namespace sherd {

namespace op {
extern const Op fetch, evict;
}  // namespace op

struct OffloadAttrs {
  Device device{};    ///< where the bytes are wanted, or come from
  int in_flight = 2;  ///< waits until fewer items of the queue hold their bytes
  static constexpr AttrField fields[] = {attr<&OffloadAttrs::device>("device").optional(),
                                         attr<&OffloadAttrs::in_flight>("in_flight").optional()};
};

inline constexpr std::string_view kDiskQueue = "disk", kOffloadQueue = "offload";

/// Where offloaded bytes are: for tensors of the host a file, for those of a device memory of the host.
class OffloadStore {
 public:
  /// For tensors of `device`. `folder`: of the file. Error naming what is wrong with the folder, or that a device has
  /// no use for one.
  OffloadStore(Device device, const std::string& folder);

  Device device() const { return device_; }
  /// "a file in \"/scratch\"", "memory of the host".
  std::string where() const;
  /// A home: a dense tensor of zeros, of the host.
  Tensor allocate(const Shape& shape, DType dtype);
  std::int64_t bytes() const { return bytes_; }
  /// Null for a device.
  OffloadFile* file() const { return file_.get(); }

 private:
  const Device device_;
  std::shared_ptr<OffloadFile> file_;
  std::int64_t bytes_ = 0;
};

/// Starts to read the homes, one after the other from multiples of a cache line on. u8[n] on the device, in the account
/// of optimizer state.
Tensor fetch(std::span<const Tensor> homes, const OffloadAttrs& attrs);
/// Starts to write `from`, laid out as fetch() does, to the homes. Its bytes stay until that is done.
void evict(std::span<const Tensor> homes, const Tensor& from, const OffloadAttrs& attrs);
/// The parts of what was fetched, one for each home, as dense tensors of the homes' dtypes.
std::vector<Tensor> parts_of(const Tensor& fetched, std::span<const Tensor> homes);

void register_offload(OpTable& table);

}  // namespace sherd
