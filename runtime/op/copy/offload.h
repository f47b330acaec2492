#pragma once
// Copies that bring bytes into the memory of a rank for a while, and take them back, beside its compute. They are calls
// of one row, which writes the first of its tensors:
//
//   copy_start(here, homes...) {kind=fetch}   the homes, each at the next multiple of 64 of `here`; of one home `here`
//                                             gets the version, by which gathers know what is current
//   copy_start(here, home) {kind=refresh}     the same, and makes the bytes of `here` present; leaves those that are of
//                                             the home's version
//   copy_start(homes..., here) {kind=evict}   the same bytes back
//
// In all three `here` may end with the last byte.
// A home is a dense tensor of the host whose bytes are in no account: of a file (memory/offload_file.h), or of memory
// that a device copies from and to by itself. What is fetched for the host is the work of the queue "disk", what is
// fetched for a device that of its queue "offload"; activations have a queue "activations" of their own, since bounds
// are of all work on a queue. Nothing here waits for what it starts: who touches the bytes does. Homes are storages as
// any other: a fetch comes after the evict before it because of what it reads, and a replay finds the homes in their
// slots.
//
//   rank's thread   fetch 0 | fetch 1 | update 0 | evict 0 | fetch 2 | update 1 | evict 1 ...
//   disk            [ 0 in ][ 1 in   ]           [ 0 out  ][ 2 in   ]           [ 1 out  ]
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/copy_queues.h"
#include "runtime/memory/offload_file.h"
#include "runtime/op/attrs/attr_kind.h"
#include "runtime/op/core/op.h"

namespace sherd {

namespace op {
extern const Op copy_start;
}  // namespace op

/// Which way a copy goes, as drawn above; traces and messages call the work of a queue so.
enum class CopyKind : std::uint8_t { fetch, refresh, evict };
std::string_view name(CopyKind kind);
template <>
struct AttrValue<CopyKind> : AttrIdentity<CopyKind> {
  static void print(const CopyKind& value, AttrWriter& out);
  static void read(CopyKind& value, AttrReader& in);
};

/// Attributes of copy_start.
struct OffloadAttrs {
  Device device{};           ///< of the tensors that are no homes
  int in_flight = 2;         ///< waits until fewer items of the queue hold their bytes
  bool activations = false;  ///< what the tape keeps, on its own queue; else what is of the model or the optimizer
  CopyKind kind = CopyKind::fetch;  ///< set by the functions below
  static constexpr AttrField fields[] = {
      attr<&OffloadAttrs::device>("device").optional(), attr<&OffloadAttrs::in_flight>("in_flight").optional().pace(),
      attr<&OffloadAttrs::activations>("activations").optional(), attr<&OffloadAttrs::kind>("kind")};
};

inline constexpr std::int64_t kOffloadBytesInFlight = std::int64_t{48} << 20;

/// What is known of a home on its rank.
struct OffloadHome {
  Device device;                 ///< on which its bytes are wanted
  std::int64_t bytes_in_flight;  ///< how many are to be in memory at a time, where they are used in pieces
};
/// Home of a tensor of this rank, or of a distributed tensor's local one; null: its bytes are in memory, or the tensor
/// is undefined.
const OffloadHome* home_of(const Tensor& tensor);
const OffloadHome* home_of(const Storage& storage);
/// For who has looked at a home by its address: what of it is memory of this process by that is given back. No-op for
/// what is in no file.
void leave_memory(const Tensor& tensor);

/// Where offloaded bytes are: for tensors of the host a file, for those of a device memory of the host.
class OffloadStore {
 public:
  /// For tensors of `device`. `folder`: of the file. Error naming what is wrong with the folder, or that a device has
  /// no use for one.
  OffloadStore(Device device, const std::string& folder, std::int64_t bytes_in_flight = kOffloadBytesInFlight);
  /// This rank's for these, made at the first call: a file for all units of a model. Errors as above.
  static std::shared_ptr<OffloadStore> shared(Device device, const std::string& folder,
                                              std::int64_t bytes_in_flight = kOffloadBytesInFlight);

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
  const std::int64_t bytes_in_flight_;
  std::shared_ptr<OffloadFile> file_;
  std::int64_t bytes_ = 0;
};

/// Starts to read the homes, one after the other from multiples of a cache line on. u8[n] on the device, in the
/// account.
Tensor fetch(std::span<const Tensor> homes, OffloadAttrs attrs, MemoryCategory account = MemoryCategory::optimizer);
/// Starts to read a home, u8: a fresh u8[bytes] on the device, in the account of parameters, of the home's version.
Tensor fetch_shards(const Tensor& home, OffloadAttrs attrs);
/// Starts to read a home, u8, into `to`, u8[bytes] on the device, whose bytes it makes present: then they are of the
/// home's version. No-op if they are that already, so a graph that fetches is valid with whatever was there before.
void fetch_into(const Tensor& home, const Tensor& to, OffloadAttrs attrs);
/// Starts to write `from`, laid out as fetch() does, to the homes. Its bytes stay until that is done.
void evict(std::span<const Tensor> homes, const Tensor& from, OffloadAttrs attrs);
/// The parts of what was fetched, one for each home, as dense tensors of the homes' dtypes.
std::vector<Tensor> parts_of(const Tensor& fetched, std::span<const Tensor> homes);

void register_offload(OpTable& table);

}  // namespace sherd
