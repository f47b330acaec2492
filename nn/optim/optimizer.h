#pragma once
// Optimizers see lists of local extents: one fused pass over all parameters of a rank, sharded or not, without a
// dispatch per tensor and without communication.
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace sherd::nn {

/// A slot of optimizer state under the parameter's name: {"blocks.0.attn.wq.weight", "m", slot}.
struct OptimizerState {
  std::string parameter;
  std::string kind;
  Slot* slot;
  const Parameter* like;  ///< whose shape it has, if it has as many elements
};

/// Base of AdamW and Sgd. Build it after fully_shard: state has the layout of the parameters
/// between steps, and
/// their device. Learning rate, step and gradient scale are 0-d tensors there, so a captured step follows their
/// changes.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, in place, then resets the gradient scale. Of parameters that
  /// fully_shard has gathered it updates the shard and drops what is gathered; during a backward pass, from a gradient
  /// hook, that stays what the forward has read until the pass is over.
  ///
  /// Errors of gradients are thrown before anything changes. An exception after that marks parameters, state and counts
  /// as torn, and ends the step for all ranks that fully_shard's groups reach; then step() is refused, and so are
  /// saves, until a checkpoint is loaded.
  void step();
  void clear_gradients();
  void step_and_clear() {
    step();
    clear_gradients();
  }

  /// Outside of a captured step; the captured step reads the slot. Does not block.
  void set_lr(double lr);
  /// Gradients are multiplied by this 0-d tensor in the next step(): clipping without a pass of its own. Copied, as
  /// f32, into a slot, so a captured step follows it. If it is not finite, step() leaves parameters, their state and
  /// all counts as they are, to the bit, whatever the gradients hold. Does not block.
  void set_gradient_scale(const Tensor& scale);
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  /// Why there is a value among parameters, state and counts that is not whole; empty if all are.
  std::string torn() const;
  void mark_torn(std::string_view reason);
  /// A step was left: peers that wait for this rank raise CommError with `reason`, where fully_shard's groups or those
  /// of tensor parallelism reach them. Local.
  void abandon(std::string_view reason) noexcept;
  void reset_gradient_scale();
  /// Those of this rank that live, in the order in which they were made.
  static const std::vector<Optimizer*>& living();

  /// State of all parameters, made now if there was no step yet; part of a checkpoint.
  std::vector<OptimizerState> state();
  /// Number of steps that have updated something, as a 0-d f32 slot; part of a checkpoint.
  Slot& step_slot() { return step_; }
  /// Number of steps that have updated each parameter, kind "step", made now if there was no step yet: slots that share
  /// the bytes of step_slot() while the parameter has missed none. Empty where the rule does not ask.
  std::vector<OptimizerState> counts();

 protected:
  Optimizer(std::vector<Parameter*> parameters, double lr);
  /// Slots of state for one parameter, zero, in its layout.
  virtual std::vector<std::string> state_kinds() const = 0;
  /// Whether update() depends on how often a parameter has been updated.
  virtual bool counts_updates() const { return false; }
  /// `active` are indices into parameters() of those that have gradients and, if the rule counts updates, have had
  /// `step` of them, this one included; then there is a call for each number.
  virtual void update(const std::vector<std::size_t>& active, const Tensor& lr, const Tensor& step,
                      const Tensor& scale) = 0;
  Slot& state_slot(std::size_t parameter, std::size_t kind) { return *state_[parameter][kind]; }

 private:
  /// Parameters that share one count.
  struct Cohort {
    Tensor count;
    std::vector<std::size_t> active, idle;  // with a gradient in this step, and without
  };
  std::vector<std::size_t> ready_parameters();
  void apply(const std::vector<std::size_t>& active);
  template <class Visit>
  void for_each_changed(const Visit& visit) const;
  void ensure_state(std::size_t parameter);
  void ensure_counts();
  std::vector<Cohort> cohorts_of(const std::vector<std::size_t>& active) const;
  std::vector<Cohort> count(const std::vector<std::size_t>& active);
  void move_scalars(Device device);

  std::vector<Parameter*> parameters_;
  std::vector<std::vector<std::unique_ptr<Slot>>> state_;  // [parameter][kind]
  std::vector<std::unique_ptr<Slot>> counts_;              // [parameter], null before its state is made
  Slot lr_, step_, scale_;
  bool has_stepped_ = false;
};

}  // namespace sherd::nn
