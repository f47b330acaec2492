#pragma once
// The rows of units: what fully_shard communicates, as calls that a graph shows and a pass may move. They are data: a
// layout (unit_layout.h) and lists of pieces. They are never differentiated.
//
//   gather_start(shards, full)           every rank's shards at their place in `full`, cast; on the queue "gather"
//   restore(full)                        makes the bytes of `full` present, for gathers that rows of their own fill
//   release(full)                        frees the bytes of `full`; handles stay
//   buffer() -> u8[bytes]                fresh bytes that rows work in, in the account that the attributes name
//   reduce_start(out..., gradients)      full gradients summed over shards, each rank's part into `out`; on "reduce"
//   replica_sum_start(sum..., out...)    those parts summed over replicas (HSDP), after it; on "replicate", so that the
//                                        next unit's reduction does not wait for a sum over a slower link. A second
//                                        reduce_start with `over_replicas` is the same for a rank that owns a part
//
// Nothing here waits for what it starts: who touches the bytes does (memory/storage.h).
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/comm/group/reduce_kind.h"
#include "runtime/op/core/tensor.h"
#include "runtime/op/unit/unit_layout.h"

namespace sherd {

/// Attributes of gather_start, restore and release.
struct UnitAttrs {
  UnitRef unit{};
  static constexpr AttrField fields[] = {attr<&UnitAttrs::unit>("unit")};
};

/// "gradients", ...
template <>
struct AttrValue<MemoryCategory> : AttrIdentity<MemoryCategory> {
  static void print(const MemoryCategory& value, AttrWriter& out);
  static void read(MemoryCategory& value, AttrReader& in);
};
/// Attributes of buffer.
struct BufferAttrs {
  Shape shape;  ///< [bytes]
  MemoryCategory account = MemoryCategory::communication;
  Device device{};
  static constexpr AttrField fields[] = {attr<&BufferAttrs::shape>("shape"), attr<&BufferAttrs::account>("account"),
                                         attr<&BufferAttrs::device>("device").optional()};
};

/// What a reduced piece is added to.
enum class AddTo : std::uint8_t {
  nothing,   ///< it is stored
  gradient,  ///< the gradient of earlier passes, which is summed over all ranks
  unsummed,  ///< sums of earlier passes that are not summed over replicas yet, as this one is not
};
std::string_view name(AddTo add_to);
template <>
struct AttrValue<AddTo> : AttrIdentity<AddTo> {
  static void print(const AddTo& value, AttrWriter& out);
  static void read(AddTo& value, AttrReader& in);
};
/// "sum" or "avg", ...
template <>
struct AttrValue<ReduceKind> : AttrIdentity<ReduceKind> {
  static void print(const ReduceKind& value, AttrWriter& out);
  static void read(ReduceKind& value, AttrReader& in);
};

/// One piece of a reduction; which pieces there are says which train and were used.
struct ReducedPiece {
  int piece = 0;                      ///< of the layout
  std::int64_t offset = 0;            ///< of its full gradient in the buffer, in bytes
  ReduceKind kind = ReduceKind::avg;  ///< sum, or avg: the sum times the reduction's scale
  AddTo add_to = AddTo::nothing;
  static constexpr AttrField fields[] = {attr<&ReducedPiece::piece>("piece"),
                                         attr<&ReducedPiece::offset>("offset").local(),
                                         attr<&ReducedPiece::kind>("kind"), attr<&ReducedPiece::add_to>("add_to")};
  friend bool operator==(const ReducedPiece&, const ReducedPiece&) = default;
};
struct UnitReduceAttrs {
  UnitRef unit{};
  double scale = 1;            ///< of averages
  int in_flight = 1;           ///< waits until fewer items of the queue hold their buffers
  bool over_replicas = false;  ///< on the queue "replicate": what is reduced are shards of another reduction
  std::vector<ReducedPiece> pieces{};
  static constexpr AttrField fields[] = {attr<&UnitReduceAttrs::unit>("unit"), attr<&UnitReduceAttrs::scale>("scale"),
                                         attr<&UnitReduceAttrs::in_flight>("in_flight").optional().pace(),
                                         attr<&UnitReduceAttrs::over_replicas>("over_replicas").optional(),
                                         attr<&UnitReduceAttrs::pieces>("pieces")};
};

/// One piece of a sum over replicas.
struct SummedPiece {
  int piece = 0;
  bool is_apart = false;  ///< the sum is in memory of its own, and goes into a tensor of the piece's dtype after
  AddTo add_to = AddTo::nothing;  ///< then: what that tensor holds; gradient: added, nothing: overwritten
  double scale = 1;               ///< of the sum
  static constexpr AttrField fields[] = {
      attr<&SummedPiece::piece>("piece"), attr<&SummedPiece::is_apart>("apart").optional(),
      attr<&SummedPiece::add_to>("add_to").optional(), attr<&SummedPiece::scale>("scale").optional()};
};
struct ReplicaSumAttrs {
  UnitRef unit{};
  int in_flight = 0;  ///< as of a reduction; 0: any number, where all sums lie in the gradients
  std::vector<SummedPiece> pieces{};
  static constexpr AttrField fields[] = {attr<&ReplicaSumAttrs::unit>("unit"),
                                         attr<&ReplicaSumAttrs::in_flight>("in_flight").optional().pace(),
                                         attr<&ReplicaSumAttrs::pieces>("pieces")};
};

/// What traces, errors of queues and communication counters call the work of the rows that communicate.
inline constexpr std::string_view kUnshardWork = "unshard", kReduceWork = "reduce";

/// Error naming the unit if one of its groups does not move memory of `device`, or not as the rows need.
void check_groups(const UnitLayout& unit, Device device);
/// `shards` and `full` are the unit's buffers, u8 [shard_bytes] and u8 [full_bytes]. Allocates the bytes of `full` and
/// submits the gather that fills them; on one shard casts here, on the device that they are on. No-op if `full` is
/// present and of the version of `shards`, so a graph that gathers is valid with whatever is gathered before it.
/// A layout in place has `shards` as both buffers, and `full` is u8[0], which keeps the version that was gathered. The
/// gather then writes the rows of other ranks too; only a gather of the next layout reads them.
void start_gather(const UnitLayout& unit, const Tensor& shards, const Tensor& full);
/// Makes the bytes of `full` present: what is in them is undefined until rows have written it, and no gather takes them
/// for what it would put there. No-op if they are present.
void restore_unit(const UnitLayout& unit, const Tensor& full);
/// Frees the bytes of `full`; waits for a gather that fills them.
void release_unit(const UnitLayout& unit, const Tensor& full);
/// A fresh u8 tensor of `bytes`, not initialised and of no version, which writes give it.
Tensor buffer(std::int64_t bytes, MemoryCategory account, Device device);
/// In the account of gradients, or in that of communication.
Tensor gradient_buffer(std::int64_t bytes, Device device);
Tensor communication_buffer(std::int64_t bytes, Device device);
/// Reduces the full gradients in `full`, u8, into `out`: one dense tensor for each of attrs.pieces, of this rank's part
/// of that piece, in its gradient's dtype, or in its wire's if it is added to no gradient. Of one shard it is done
/// here, on the device that they are on. Over several it waits for earlier reductions only, as attrs.in_flight says,
/// and while it runs `full` counts as communication.
void start_reduce(const UnitReduceAttrs& attrs, const Tensor& full, std::span<const Tensor> out);
/// Sums `sums`, one dense tensor for each of attrs.pieces, over replicas in place, and puts those that are apart into
/// `out`, one for each of them.
void start_replica_sum(const ReplicaSumAttrs& attrs, std::span<const Tensor> sums, std::span<const Tensor> out);

}  // namespace sherd
