#pragma once
// Optimizers see lists of local extents: one fused pass over all parameters of a rank, sharded or not, without a
// dispatch per tensor and without communication.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"
#include "nn/optim/offloaded_state.h"
#include "runtime/tensor/no_copy.h"
#include "runtime/tensor/small_vec.h"

namespace sherd::nn {

/// A slot of optimizer state under the parameter's name: {"blocks.0.attn.wq.weight", "m", slot}.
struct OptimizerState {
  std::string parameter;
  std::string kind;
  Slot* slot;
  const Parameter* like;  ///< whose shape it has, if it has as many elements
};

/// What one update changes of a parameter: this rank's elements, or a run of them. All tensors have one shape.
struct UpdatedPart {
  std::size_t parameter;  ///< index into parameters()
  Tensor value;
  SmallVec<Tensor, 2> state{};  ///< by kind
  Tensor gradient;
};

struct StepInBackward {
  /// A gradient is cleared when its parameter has been updated.
  bool clears_gradients = false;
};

/// What changes parameters: kinds of state, and a fused row.
class UpdateRule {
 public:
  /// Slots of state for one parameter, zero, in its layout.
  virtual std::vector<std::string> state_kinds() const = 0;
  /// Whether update() takes parameters of a floating dtype.
  virtual bool updates(DType dtype) const = 0;
  /// Whether update() depends on how often a parameter has been updated.
  virtual bool counts_updates() const { return false; }
  /// `parts` are of parameters that have gradients and, if the rule counts updates, have had `step` of them, this one
  /// included; then there is a call for each number. Where state is offloaded there is one for each piece.
  virtual void update(std::vector<UpdatedPart> parts, const Tensor& lr, const Tensor& step, const Tensor& scale) = 0;

 protected:
  ~UpdateRule() = default;
};

class OptimizerSlots;
class StepInPieces;

/// Base of AdamW and Sgd, which are its rule. Build it after fully_shard: state has the layout of the parameters
/// between steps, and their device. Learning rate, step and gradient scale are 0-d tensors there, so a captured step
/// follows their changes.
class Optimizer : private UpdateRule, NoCopy {
 public:
  virtual ~Optimizer();

  /// Updates every parameter that has a gradient, in place, then resets the gradient scale. Of parameters that
  /// fully_shard has gathered it updates the shard and drops what is gathered; during a backward pass, from a gradient
  /// hook, that stays what the forward has read until the pass is over.
  ///
  /// Values need not be dense: one with strides is updated in a copy. Errors of gradients, of a dtype that it does not
  /// update, of a value whose elements share bytes, and of state whose dtype or layout is not its parameter's
  /// any more, are thrown before anything changes. An exception after that marks parameters, state and counts as torn,
  /// and ends the step for all ranks that fully_shard's groups reach; then step() is refused, and so are saves, until a
  /// checkpoint is loaded.
  void step();
  /// The step to come begins within backward: from now on each parameter is updated once its gradient of a pass is
  /// complete, reduced or on its way, while the pass goes on, and step() updates the others. To call before the last
  /// pass of a step, best before its forward: offloaded state that is wanted first is on its way from here on. The
  /// gradient scale that counts is that of now, so there is no clipping; gradients that are not finite are applied.
  /// Until step() has returned all is torn: a pass that is left leaves parameters of two steps. Error if something is
  /// torn; in backward, if a parameter gets another gradient after its update.
  void step_in_backward(const StepInBackward& options = {});
  /// Steps to come begin within backward: what the first of them would add to parameters for it is there now, so that
  /// steps captured before it, also elsewhere, go on. Changes no step that asks for nothing.
  void prepare_steps_in_backward();
  /// Also ends what step_in_backward() has asked for.
  void clear_gradients();
  void step_and_clear() {
    step();
    clear_gradients();
  }

  /// Parameters and gradients that lie outside of memory (UnitPolicy::offload) are brought in pieces, too, whether or
  /// not the state is in memory.
  ///
  /// Keeps the state outside of the memory of the parameters' device, see offloaded_state.h: step() brings it in
  /// pieces, to the same bits. Slots of state then hold tensors of the host. Before the first step and the first
  /// state(). Error if there is state already, and those of OffloadStore. Local.
  void offload(const OffloadOptions& options);
  /// Null: the state is in memory.
  const OffloadedState* offloaded() const;

  /// Outside of a captured step; the captured step reads the slot. Does not block. Error unless it is a finite f32 of
  /// at least 0, as of the constructors' options.
  void set_lr(double lr);
  /// Gradients are multiplied by this 0-d tensor in the next step(): clipping without a pass of its own. Copied, as
  /// f32, into a slot, so a captured step follows it. If it is not finite, step() leaves parameters, their state and
  /// all counts as they are, to the bit, whatever the gradients hold. Does not block.
  void set_gradient_scale(const Tensor& scale);
  /// The slot's 0-d tensor, which the rows of step() read.
  const Tensor& gradient_scale() const;
  const std::vector<Parameter*>& parameters() const;

  /// Why there is a value among parameters, state and counts that is not whole; empty if all are.
  std::string torn() const;
  void mark_torn(std::string_view reason);
  /// A step was left: peers that wait for this rank raise CommError with `reason`, where fully_shard's groups or those
  /// of tensor parallelism reach them. Local.
  void abandon(std::string_view reason) noexcept;
  /// A step was left: its gradient scale does not count, nor does a step_in_backward() that was to follow. Local.
  void forget_step();
  /// The optimizers of this rank that live, in the order in which they were made.
  static std::vector<Optimizer*> living(RankRegister* of = nullptr);

  /// State of all parameters, made now if there was no step yet; part of a checkpoint.
  std::vector<OptimizerState> state();
  /// Number of steps that have updated something, as a 0-d f32 slot; part of a checkpoint.
  Slot& step_slot();
  /// Number of steps that have updated each parameter, kind "step", made now if there was no step yet: slots that share
  /// the bytes of step_slot() while the parameter has missed none. Empty where the rule does not ask.
  std::vector<OptimizerState> counts();

 protected:
  /// Error if a parameter is null or twice in the list, which would move it twice a step.
  Optimizer(std::vector<Parameter*> parameters, double lr);

 private:
  std::vector<std::size_t> ready_parameters();
  void apply(const std::vector<std::size_t>& active);
  void update_whole(const std::vector<std::size_t>& updated, const Tensor& count);

  const std::unique_ptr<OptimizerSlots> slots_;
  const std::unique_ptr<StepInPieces> pieces_;
  Registered<Optimizer> registered_{this};
};

}  // namespace sherd::nn
