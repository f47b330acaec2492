#pragma once
// One call of a group: what all ranks must agree on, what it reads and writes, and which of these may be one buffer.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/cuda/nccl/nccl_types.h"

namespace sherd::cuda::nccl::fake {

enum class Kind : std::uint32_t { all_reduce, all_gather, reduce_scatter, broadcast, reduce, send, recv };

/// What ranks compare. `op` is 5 for any factor; `root` is -1 where there is none.
struct Signature {
  Kind kind{};
  DataType type{};
  std::uint32_t op = 0;
  std::int32_t root = -1;
  std::uint64_t count = 0;
  bool operator==(const Signature&) const = default;
};

/// "ncclAllGather".
const char* name_of(Kind kind);
/// "ncclReduce of 4 float32, op sum, root 1".
std::string text_of(const Signature& signature);
/// 0 of a type that there is none of.
std::size_t bytes_of(DataType type);

struct Bytes {
  const std::byte* begin = nullptr;
  std::size_t size = 0;
  bool overlaps(const Bytes& other) const {
    return size > 0 && other.size > 0 && begin < other.begin + other.size && other.begin < begin + size;
  }
};

struct Call {
  Signature signature{};
  int peer = -1;  ///< of a send or recv
  const std::byte* in = nullptr;
  std::byte* out = nullptr;

  bool is_collective() const { return signature.kind < Kind::send; }
  std::size_t bytes() const { return signature.count * bytes_of(signature.type); }
  /// What this rank reads and writes; empty if nothing.
  Bytes reads(int rank, int world) const;
  Bytes writes(int rank, int world) const;
  /// Whether its two buffers are apart, or one as NCCL allows it for this kind.
  bool keeps_in_place_rules(int rank, int world) const;
};

/// The first two calls of a group of which one writes what the other touches, or {-1, -1}: they run in any order.
std::pair<int, int> overlapping(std::span<const Call> calls, int rank, int world);

}  // namespace sherd::cuda::nccl::fake
