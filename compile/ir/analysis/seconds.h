#pragma once
// What a program takes, predicted: the price of each node (runtime/exec/price.h), and a clock for the rank's thread and
// one for each of its queues.
//
//   thread   matmul | gather_start | add . . . | wait ///// | matmul         ///// exposed: it stands still
//   gather                  [ the link's seconds            ]
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compile/ir/program.h"
#include "runtime/exec/price.h"
#include "runtime/op/copy/offload.h"

namespace sherd::ir {

/// A node's: what its rank's thread computes, and what the work takes that it hands to a queue, on that queue.
struct NodeSeconds {
  double compute = 0, queued = 0;
};

/// A step alone: queues are idle when it begins, and it ends when all are.
struct StepSeconds {
  double seconds = 0;
  double compute = 0;                                 ///< of these the rank's thread computes
  double exposed = 0;                                 ///< of these it waits
  std::map<std::string, double, std::less<>> busy{};  ///< by queue
};

/// By the price of the node's key; without one by its work and the rate of its row, of rows like it, or a default, and
/// what communicates by the link of its group: Prices::links may also have "work gather dp#1", the part of a
/// transfer that takes the thread's own core, as on ranks that have no core for their queues.
NodeSeconds seconds_of(const Program& program, std::size_t node, const Prices& prices);
/// The same for all nodes. A node whose key and work are those of another has its seconds, a clone as well.
std::vector<NodeSeconds> node_seconds(const Program& program, const Prices& prices);

/// Plays the program: items of a queue come one after the other, after those whose bytes they use; waits, or where they
/// are no nodes the first touch of a queue's bytes, and calls that find their queue full, stand still. `nodes` is by
/// node. About 0.2 us per node where waits are nodes.
StepSeconds step_seconds(const Program& program, std::span<const NodeSeconds> nodes);
StepSeconds step_seconds(const Program& program, const Prices& prices);

// ---- for who makes prices ----

/// Calls of one key cost the same: row, attributes, dtypes, shapes, strides, what is written in place, and the group
/// that a transfer is of. It leaves out attributes that say which (unit, key of random numbers), and those that differ
/// between ranks.
std::string price_key(const Program& program, const GraphNode& node);
/// Beside a key: what the call's work takes on its queue.
std::string queued_key(std::string_view key);

/// A call's work as rates count it.
struct Work {
  bool counts_flops = false;  ///< else bytes
  std::string_view kind;      ///< of rows like it: "contraction", "pointwise", ...
  double amount = 0;
};
Work work_of(const Program& program, const GraphNode& node);
/// What a byte takes to a home or from there (runtime/op/copy/offload.h), on the queue and of the thread's own core.
std::string copy_key(CopyKind kind);
std::string copy_work_key(CopyKind kind);
NodeSeconds copy_seconds(const Prices& prices, CopyKind kind, double bytes);
/// Keys of rates, seconds per unit of work: of a row's name, or of a kind: "flop of matmul".
std::string rate_key(const Work& work, std::string_view of);

/// A node that moves bytes between the ranks of a group of several.
struct Transfer {
  Movement movement;
  std::string group;  ///< group_names.h
  int ranks;
  double bytes;  ///< of the full tensors, as they travel
};
std::optional<Transfer> transfer_of(const GraphNode& node);
/// Whether a kernel computes all that the node does: its price is that of its key.
bool is_computed(const GraphNode& node);

}  // namespace sherd::ir
