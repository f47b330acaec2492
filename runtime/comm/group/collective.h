#pragma once
// A collective as data: what a process group is asked to queue, on buffers of any device.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/comm/group/reduce_kind.h"
#include "runtime/exec/queue.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"

namespace sherd {

namespace comm {
enum class CommOp : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier, all_to_all, send, recv };
std::string_view name(CommOp op);
}  // namespace comm

/// `bytes` bytes of one rank, on one device. The address of a device means nothing on the host.
struct Buffer {
  void* address = nullptr;
  std::int64_t bytes = 0;
  Device device{};
};

/// One tensor of a collective; `counts` are elements, of rank r counts[r], and lie in rank order.
///   all_gather      in: this rank's counts[rank] elements of `dtype`, which may lie at their place in `out`; a
///                   HostGroup takes no address for that; out: sum(counts) of `out_dtype`
///   reduce_scatter  in: sum(counts) of `dtype`, out: counts[rank] of `out_dtype`, perhaps the own part of `in`. Inputs
///                   and result are rounded to `wire`, sums are kept in f32 (f64 of f64), and with `accumulate`
///                   added to what `out` holds, f64 in f64. A wider wire than `dtype` moves no more bytes
///   all_reduce      counts[0] elements from `in` to `out`, which may be `in`
///   broadcast       counts[0] elements from the root's `in` to every rank's `out`, which may be `in`
///   all_to_all      in: counts[r] elements for each rank, out: out_counts[r] from each; they must not overlap
/// What is cast on its way must not overlap either.
///   send, recv      counts[0] elements of `in`, of `out`
/// With several `blocks`, all_gather and reduce_scatter of a tensor that is sharded along an inner dim: the full tensor
/// is as many equal blocks, each of counts[r] / blocks elements of every rank r in rank order; a shard is dense, and
/// lies apart from the full tensor:
///   full    | r0 | r1 | r0 | r1 | r0 | r1 |      shard of r1    | r1 | r1 | r1 |
struct CollectivePart {
  Buffer in{}, out{};
  DType dtype = DType::f32;
  std::vector<std::int64_t> counts{};
  std::optional<DType> out_dtype{}, wire{};  ///< unset: `dtype`
  bool accumulate = false;
  std::vector<std::int64_t> out_counts{};
  std::int64_t blocks = 1;

  DType out_type() const { return out_dtype.value_or(dtype); }
  DType wire_type() const { return wire.value_or(dtype); }
  std::int64_t wire_size() const { return std::min(byte_size(dtype), byte_size(wire_type())); }
  /// all_gather: `rank`'s elements lie at their place in `out`.
  bool is_in_place(int rank) const;
};

/// `count` elements, which are reduced, overwritten, sent or received where they lie.
CollectivePart in_place(void* data, DType dtype, std::int64_t count);
/// all_gather to `data`, where this rank's elements are at their place.
CollectivePart in_place(void* data, DType dtype, std::vector<std::int64_t> counts);

struct Collective {
  comm::CommOp op;
  std::vector<CollectivePart> parts{};
  ReduceOptions reduction{};
  int peer = 0;  ///< root of broadcast; the other rank of send and recv

  /// Bytes of the full tensors as they travel; CommCounts and traces count these.
  std::int64_t bytes() const;
};

/// Bytes that a collective uses of a part's two buffers on this rank.
struct CollectiveExtent {
  std::int64_t in = 0, out = 0;
};
CollectiveExtent extent_of(const Collective& call, const CollectivePart& part, int rank);

/// Throws Error, naming the tensor, unless every buffer has room for its elements, all lie on one device, what must lie
/// apart does not overlap, and there is one count per rank where ranks have parts. Returns that device; `otherwise` if
/// there are no bytes.
Device check_buffers(const Collective& call, int rank, int size, Device otherwise);

/// Where a collective is queued, and how it is called in messages and traces.
struct CollectiveSite {
  Queue& queue;                   ///< of the device where the buffers are
  std::string_view name;          ///< a literal or the name of an op: "unshard"
  std::string_view subject{};     ///< what it acts on: "blocks.3"; copied. Ranks compare it, see comm::SubjectScope
  std::string_view part{};        ///< of the subject, where not all of it takes part: "without bias"; copied, compared
  std::span<const Loan> loans{};  ///< all bytes that the buffers name
  std::size_t max_in_flight = QueueWork::kUnlimited;
};

/// What a group does within a collective. Callers compose what is missing (a cast before, a cast and an addition
/// after), or refuse.
struct Abilities {
  bool casts = false;        ///< parts may arrive in another type than they start in, and travel in a third
  bool uneven = false;       ///< ranks may have different counts
  bool ordered_sum = false;  ///< reductions add as a tree (sum_order.h): the same bits whatever the sizes and the group
  bool accumulate = false;   ///< reduce_scatter may add to what `out` holds
  bool lists = false;        ///< many tensors are one launch
  bool windows = false;      ///< peers read in place what lies in memory that the group gives (SharedHeap)
  bool blocks = false;       ///< tensors may be sharded along an inner dim
  bool same_counts = false;  ///< gathers and reductions to equal parts are calls of their own, not made of others
  bool nan_wins = false;     ///< a NaN of any rank is the maximum and the minimum
};
inline constexpr Abilities kAllAbilities{.casts = true,
                                         .uneven = true,
                                         .ordered_sum = true,
                                         .accumulate = true,
                                         .lists = true,
                                         .windows = true,
                                         .blocks = true,
                                         .same_counts = true,
                                         .nan_wins = true};

}  // namespace sherd
