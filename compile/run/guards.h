#pragma once
// The guards of one recording over many calls. All are looked at when something that they read has changed since its
// last replay; when nothing has, what a call brings itself: its arguments, and who else holds a gradient.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compile/ir/graph.h"
#include "runtime/exec/rank_register.h"

namespace sherd {

class Guards {
 public:
  /// The graph outlives this object and neither moves nor changes.
  explicit Guards(const ir::Graph& graph);

  /// Why the recording does not fit this call of its rank; empty if it does. Throws Error naming a slot that no longer
  /// exists.
  std::string mismatch(std::span<const Tensor> arguments);
  /// A replay of the recording, of a call that fits, has ended.
  void replayed();
  /// How often all guards were looked at.
  std::int64_t num_looks() const { return num_looks_; }

 private:
  std::uint64_t changes() const;
  std::string look_at_all(std::span<const Tensor> arguments);
  std::string told_mismatch() const;
  bool may_share(std::span<const Tensor> arguments) const;

  const ir::Graph& graph_;
  std::vector<const ir::Binding*> held_;                        // gradients that nothing but the slot may hold
  std::vector<const ir::Binding*> moving_;                      // whose storage each replay replaces
  std::vector<const Storage*> fixed_;                           // of all others from outside, but arguments; ordered
  std::vector<std::shared_ptr<const RankRegister>> registers_;  // of whose ranks the step reads something
  std::uint64_t seen_ = 0;                                      // changes() at the end of the last replay
  std::int64_t num_looks_ = 0;
  std::vector<std::uint64_t> told_;          // by slot, Slot::num_told() when it was recorded
  std::vector<ir::ValueId> before_, found_;  // what shares memory: before the last replay, and at the last look
  bool can_settle_;
  bool is_as_left_ = false;   // a replay has ended, and not all was looked at since
  bool stays_alike_ = false;  // a replay that begins with what shares memory as in before_ leaves it so
  bool is_settled_ = false;   // what a replay leaves, fits the next call
};

}  // namespace sherd
