#pragma once
// Optimizer state outside of memory: in a file where parameters are on the host, in memory of the host where they are
// on a device. The optimizer steps in pieces, of which a few are in memory at a time (runtime/op/copy/offload.h):
//
//   home       | w0.m | w0.v | w1.m | w1.v | w2.m .......... | w2.v .......... |    slots of state
//   pieces     [ 0                         ][ 1: first elements of w2 ][ 2: the others ]
//   in memory  one that is updated, the next one on its way in, the one before on its way out
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nn/module.h"
#include "runtime/op/copy/offload.h"

namespace sherd::nn {

struct OffloadOptions {
  /// Folder of the file, for parameters of the host. Empty for parameters of a device.
  std::string folder{};
  /// State in memory at a time, at most: a third of it is a piece, or a twelfth of the state if that is less. It is in
  /// the account of optimizer state.
  std::int64_t bytes_in_flight = kOffloadBytesInFlight;
  /// As much of the state stays in memory: that of the smallest parameters (kept_in_memory()), by what the rank has
  /// that has most.
  std::int64_t bytes_in_memory = 0;
};

/// Elements [first, first + count) of this rank's part of a parameter.
struct StateRun {
  std::size_t parameter;
  std::int64_t first, count;
  bool is_last;  ///< of the parameter's
  friend bool operator==(const StateRun&, const StateRun&) = default;
};
using StatePiece = std::vector<StateRun>;

/// Where a parameter is updated: the device of its shard, also if that lies outside of memory.
Device update_device(const Parameter& parameter);
/// Bytes of the tensor that a rank has on average, the same on all.
std::int64_t bytes_per_rank(const Tensor& value);
/// Bytes of the tensor on the rank that has most.
std::int64_t most_bytes_of_a_rank(const Tensor& value);
/// A run's elements of a tensor of this rank, or of its local one, dense: [count].
Tensor elements_of(const Tensor& tensor, const StateRun& run);

/// Size of a piece, where `bytes` are outside of memory and `bytes_in_flight` may be in it at a time.
std::int64_t piece_bytes(std::int64_t bytes, std::int64_t bytes_in_flight);

/// Cuts what comes into pieces of about equal size; a large parameter is cut into runs. All ranks cut alike, whatever
/// their shards hold: by what a rank has on average. A run may be empty, and those of a larger shard are larger.
class StatePieces {
 public:
  /// `kinds`: of state that each parameter has. Runs begin at multiples of `block` elements; 0: of a cache line.
  StatePieces(std::int64_t piece_bytes, std::size_t kinds, std::int64_t block = 0)
      : piece_bytes_(piece_bytes), kinds_(kinds), block_(block) {}
  /// Appends the elements of a parameter; returns the pieces that are full.
  std::vector<StatePiece> add(std::size_t parameter, const Tensor& value);
  /// The last one, which is not full; empty if there is none.
  StatePiece take_rest();

 private:
  std::int64_t piece_bytes_;
  std::size_t kinds_;
  std::int64_t block_;
  StatePiece open_;
  std::int64_t left_ = piece_bytes_;
};

class OffloadedState {
 public:
  /// `bytes` of state of each parameter. Errors of OffloadStore; bytes_in_flight that no element fits, and negative
  /// bytes_in_memory.
  OffloadedState(Device device, const OffloadOptions& options, std::span<const std::int64_t> bytes);

  Device device() const { return store_.device(); }
  const OffloadStore& store() const { return store_; }
  Tensor allocate(const Shape& shape, DType dtype) { return store_.allocate(shape, dtype); }
  std::int64_t bytes_in_flight() const { return bytes_in_flight_; }
  /// Whether the state of a parameter lies outside of memory.
  bool has(std::size_t parameter) const { return !kept_[parameter]; }

 private:
  OffloadStore store_;
  std::int64_t bytes_in_flight_;
  std::vector<bool> kept_;  // by parameter: in memory
};

}  // namespace sherd::nn
