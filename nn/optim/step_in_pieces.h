#pragma once
// A step that is made piece by piece, of state, values and gradients that come and go; and one that begins within
// backward, as gradients become complete. Of the files of Optimizer alone.
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "nn/optim/optimizer_slots.h"
#include "runtime/op/core/host_state.h"

namespace sherd::nn {

class StepInPieces {
 public:
  /// What ask() has asked for, of the step to come.
  struct Asked {
    bool wanted = false, clears = false;
    static constexpr AttrField fields[] = {
        attr<&Asked::wanted>("step_in_backward").seen_by(SeenBy::guard, "each complete gradient; step()"),
        attr<&Asked::clears>("clears_gradients").seen_by(SeenBy::guard, "each update in backward")};
  };

  explicit StepInPieces(OptimizerSlots& slots);
  ~StepInPieces();

  /// Whether something that a step updates lies outside of memory.
  bool are_needed() const;
  /// Updates parameters that share a count.
  void update(const std::vector<std::size_t>& parameters, const Tensor& count);
  /// Updates what has been fetched.
  void finish();
  /// Lets go of what a step that has failed has fetched, and of what it meant to do.
  void drop();
  /// Marks all as torn, and ends the step for others, if `change` throws.
  void or_tear(const std::function<void()>& change);

  /// Adds to all parameters what steps within backward need; once.
  void add_hooks();
  /// The step to come begins within backward, see Optimizer::step_in_backward().
  void ask(const StepInBackward& options);
  /// Whether such a step has changed something; whether it has updated this parameter.
  bool has_begun() const;
  bool is_updated(std::size_t parameter) const;
  void forget_step_that_was_left();
  void end_in_backward();

 private:
  struct InFlight;
  struct InBackward;
  void begin_update(std::size_t parameter, const Tensor& count);
  void start(StatePiece piece);
  void update_oldest();
  void gradient_is_complete(std::size_t parameter);
  void fetch_ahead();
  Tensor take_ahead(const StatePiece& piece);
  void begin_in_backward();
  Tensor count_of_step(std::size_t parameter);

  OptimizerSlots& slots_;
  std::unique_ptr<InFlight> pieces_;         // of the step that is made; null: none
  std::unique_ptr<InBackward> in_backward_;  // null: no step of a backward pass was ever wanted
  HostState<Asked> asked_;
  const std::shared_ptr<const int> alive_ = std::make_shared<int>(0);  // for hooks of parameters, which live on
};

}  // namespace sherd::nn
