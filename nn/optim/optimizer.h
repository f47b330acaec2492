#pragma once
// Optimizers see lists of local extents: one fused pass over all parameters of a rank, sharded or not, without a
// dispatch per tensor and without communication.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"
#include "nn/optim/offloaded_state.h"
#include "runtime/op/core/host_state.h"
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

/// What step_in_backward() has asked for, of the step to come.
struct AskedInBackward {
  bool wanted = false, clears = false;
  static constexpr AttrField fields[] = {
      attr<&AskedInBackward::wanted>("step_in_backward").seen_by(SeenBy::guard, "each complete gradient; step()"),
      attr<&AskedInBackward::clears>("clears_gradients").seen_by(SeenBy::guard, "each update in backward")};
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
  const OffloadedState* offloaded() const { return offloaded_.get(); }

  /// Outside of a captured step; the captured step reads the slot. Does not block. Error unless it is a finite f32 of
  /// at least 0, as of the constructors' options.
  void set_lr(double lr);
  /// Gradients are multiplied by this 0-d tensor in the next step(): clipping without a pass of its own. Copied, as
  /// f32, into a slot, so a captured step follows it. If it is not finite, step() leaves parameters, their state and
  /// all counts as they are, to the bit, whatever the gradients hold. Does not block.
  void set_gradient_scale(const Tensor& scale);
  /// The slot's 0-d tensor, which the rows of step() read.
  const Tensor& gradient_scale() const { return scale_.value(); }
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  /// Why there is a value among parameters, state and counts that is not whole; empty if all are.
  std::string torn() const;
  void mark_torn(std::string_view reason);
  /// A step was left: peers that wait for this rank raise CommError with `reason`, where fully_shard's groups or those
  /// of tensor parallelism reach them. Local.
  void abandon(std::string_view reason) noexcept;
  /// A step was left: its gradient scale does not count, nor does a step_in_backward() that was to follow. Local.
  void forget_step();
  /// Those of this rank that live, in the order in which they were made.
  static std::vector<Optimizer*> living(RankRegister* of = nullptr);

  /// State of all parameters, made now if there was no step yet; part of a checkpoint.
  std::vector<OptimizerState> state();
  /// Number of steps that have updated something, as a 0-d f32 slot; part of a checkpoint.
  Slot& step_slot() { return step_; }
  /// Number of steps that have updated each parameter, kind "step", made now if there was no step yet: slots that share
  /// the bytes of step_slot() while the parameter has missed none. Empty where the rule does not ask.
  std::vector<OptimizerState> counts();

 protected:
  /// Error if a parameter is null or twice in the list, which would move it twice a step.
  Optimizer(std::vector<Parameter*> parameters, double lr);
  /// Slots of state for one parameter, zero, in its layout.
  virtual std::vector<std::string> state_kinds() const = 0;
  /// Whether update() takes parameters of a floating dtype.
  virtual bool updates(DType dtype) const = 0;
  /// Whether update() depends on how often a parameter has been updated.
  virtual bool counts_updates() const { return false; }
  /// `parts` are of parameters that have gradients and, if the rule counts updates, have had `step` of them, this one
  /// included; then there is a call for each number. Where state is offloaded there is one for each piece.
  virtual void update(std::vector<UpdatedPart> parts, const Tensor& lr, const Tensor& step, const Tensor& scale) = 0;

 private:
  /// Parameters that share one count.
  struct Cohort {
    Tensor count;
    std::vector<std::size_t> active, idle;  // with a gradient in this step, and without
  };
  std::vector<std::size_t> ready_parameters();
  void apply(const std::vector<std::size_t>& active);
  void update_all(const Cohort& cohort);
  void update_in_pieces(const Cohort& cohort);
  bool has_homes() const;
  struct PieceSizes {
    std::int64_t bytes = 0, in_flight = 0;  ///< of a piece; pieces in memory at a time, between steps
  };
  PieceSizes piece_sizes() const;
  std::vector<Tensor> homes_of(const StatePiece& piece) const;
  std::vector<Tensor> gradient_homes_of(const StatePiece& piece) const;
  void add_update(std::size_t parameter, const Tensor& count);
  void start_piece(StatePiece piece);
  void update_oldest_piece();
  void finish_pieces();
  /// Of a step that has failed: what it has fetched, and what it meant to do.
  void drop_pieces();
  /// Of a step in backward: whether it has changed something; whether it has updated this parameter.
  bool has_begun() const;
  bool is_updated(std::size_t parameter) const;
  /// Marks all as torn, and ends the step for others, if `change` throws.
  void or_tear(const std::function<void()>& change);
  void gradient_is_complete(std::size_t parameter);
  void fetch_ahead();
  Tensor take_ahead(const StatePiece& piece);
  void begin_in_backward();
  void forget_step_that_was_left();
  void end_in_backward();
  Tensor count_of_step(std::size_t parameter);
  /// Of parameters, state and counts.
  void for_each_slot(const std::function<void(Slot&)>& visit) const;
  void ensure_state(std::size_t parameter);
  void check_value(std::size_t parameter) const;
  void check_state_fits(std::size_t parameter) const;
  void ensure_counts();
  std::vector<Cohort> cohorts_of(const std::vector<std::size_t>& active) const;
  std::vector<Cohort> count(const std::vector<std::size_t>& active);
  void move_scalars(Device device);

  std::vector<Parameter*> parameters_;
  std::vector<std::vector<std::unique_ptr<Slot>>> state_;  // [parameter][kind]
  std::vector<std::unique_ptr<Slot>> counts_;              // [parameter], null before its state is made
  std::unique_ptr<OffloadedState> offloaded_;              // null: state is in memory
  struct PiecesInFlight;
  std::unique_ptr<PiecesInFlight> pieces_;  // of the step that is made; null: none
  struct InBackward;
  std::unique_ptr<InBackward> in_backward_;  // null: no step of a backward pass was ever wanted
  HostState<AskedInBackward> asked_;
  std::shared_ptr<const int> alive_ = std::make_shared<int>(0);  // for hooks of parameters, which live on
  Slot lr_, step_, scale_;
  bool has_stepped_ = false;
  Registered<Optimizer> registered_{this};
};

}  // namespace sherd::nn
