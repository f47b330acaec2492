#pragma once
// The results that the tape does not keep, during a backward pass: made again by their makers' calls when a vjp first
// reads one, and held until the last reader has had its turn.
//
//   segment   x -> norm -> up -> gelu -> down -> +        kept: x, and the parameters
//   backward                        |      `-- its vjp reads gelu's result: norm, up and gelu run again
//                                   `--------- its vjp reads up's result, which is still there
//
// Readers run later than their makers in forward and earlier in backward, so whoever is asked has had no turn yet and
// still has what the tape keeps for it. A call whose results can be had runs again at most once; one of a row with the
// column `recompute` at most twice: what the first run gives is held between its uses only if that spares more than its
// own call, what the second gives until its last reader has had its turn.
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/autograd/node.h"

namespace sherd {

/// Whether the maker of input i computes it again.
inline bool is_recomputed(const OpNode& node, std::size_t i) { return i < 32 && (node.recomputed_inputs >> i & 1u); }
/// The node that makes input i, as its result output_of().
inline OpNode& maker_of(const OpNode& node, std::size_t i) { return *static_cast<OpNode*>(node.next[i].node.get()); }
inline std::size_t output_of(const OpNode& node, std::size_t i) { return static_cast<std::size_t>(node.next[i].index); }
/// Error if an earlier pass has freed what the tape kept for the node.
void check_not_freed(const OpNode& node);

class RecomputedValues {
 public:
  /// The pass reaches this node. All are counted before the first value is asked for.
  void count(const OpNode& node);
  /// A result of `maker`, which has had no turn yet or has it now: what the tape keeps, or a value that is held until
  /// its last reader's turn is over.
  const Tensor& value(OpNode& maker, std::size_t output);
  /// The same for one of its readers, for the last time: the last of them gets the only handle.
  Tensor take(OpNode& maker, std::size_t output);
  /// The node's vjp runs now: all who read its results have had their turns.
  void begin_turn(const OpNode& node);
  /// It has run, and take() gave it the inputs in `taken`, a bit mask.
  void end_turn(const OpNode& node, std::uint32_t taken);

 private:
  struct Held {
    SavedTensor tensor{};
    int readers = 0;  // nodes of this pass that may still ask for it, its maker too if its own vjp reads it
    int waiting = 0;  // inputs of calls that are about to run again
  };
  struct Results {
    SmallVec<Held, 1> values;  // per output
    bool is_planned = false;   // its call is about to run again
    int runs = 0;              // again, in this pass
  };
  Results& results_of(const OpNode& maker);
  Held& input_of(const OpNode& node, std::size_t i);
  bool is_there(const OpNode& maker, std::size_t output);
  bool is_cheap_again(const OpNode& maker, std::size_t output);
  std::vector<OpNode*> plan_for(OpNode& wanted);
  void run_again(OpNode& node, const OpNode& wanted);
  Tensor take_input(OpNode& node, std::size_t i, bool is_first_time, const OpNode& wanted);
  void let_go(const OpNode& node, std::size_t i);

  std::unordered_map<const OpNode*, Results> results_;  // until the maker's turn is over; addresses are stable
  const Results* turn_ = nullptr;                       // of the node whose turn it is, null: it has none
};

}  // namespace sherd
