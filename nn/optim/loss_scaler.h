#pragma once
// Loss scaling for training in f16, whose smallest number is 6e-8 and whose largest is 65504: the loss is multiplied by
// a scale so that small gradients do not underflow; the update divides by it (Micikevicius et al., "Mixed precision
// training", 2018). The scale finds itself: a gradient that is not finite halves it, many good steps double it.
//
//   backward(scaler.scale(loss));
//   const Tensor norm = scaler.unscale(optimizer, 1.0);  // clips as well
//   optimizer.step_and_clear();                          // changes nothing if the norm is not finite
//   scaler.update();
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nn/optim/optimizer.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// All of its state is 0-d f32 tensors in slots and whether a step is skipped is one of them: nothing waits for the
/// device, the host never branches, and a captured step follows. Of gradients in any layout. One for a model; with
/// several optimizers each has its unscale(), and update() comes once after them.
///
/// Where the scales are powers of two, a step that is not skipped gives the bits of the step without a scaler, as long
/// as no gradient under- or overflows.
class LossScaler : NoCopy {
 public:
  /// The defaults are those of PyTorch's GradScaler, which has no smallest scale.
  struct Options {
    double init_scale = 65536;
    double growth_factor = 2;     ///< after growth_interval good steps in a row, unless the scale would overflow f32
    double backoff_factor = 0.5;  ///< after a step that is skipped
    int growth_interval = 2000;
    double min_scale = 1;  ///< backing off ends here

    /// A scale that never changes; steps are skipped all the same.
    static Options fixed(double scale) {
      return {.init_scale = scale, .growth_factor = 1, .backoff_factor = 1, .growth_interval = 1, .min_scale = 0};
    }
  };
  /// Error naming the option that is out of range.
  explicit LossScaler(const Options& options);
  LossScaler() : LossScaler(Options()) {}
  ~LossScaler();

  /// loss x scale, at least f32, to call backward() on; loss: any layout but Partial. Moves the state to the loss's
  /// device the first time. Gradients of the tensors behind it are scaled until the optimizer has stepped.
  Tensor scale(const Tensor& loss);
  /// Makes the next optimizer.step() divide the gradients by the scale and limit their norm to max_norm, or, if a
  /// gradient of any rank is not finite, change nothing: no parameter, no state and no count. Gradients themselves stay
  /// scaled. One fused pass over the local extents and one all-reduce of one number over all ranks of the mesh, so that
  /// all skip or none does. Returns the p-norm of the unscaled gradients before clipping, 0-d f32. Error: Partial
  /// gradients, max_norm not above 0.
  Tensor unscale(Optimizer& optimizer, double max_norm = std::numeric_limits<double>::infinity(), double p = 2);
  /// The end of a step: backs off if an unscale() since the last update() has found something that is not finite, else
  /// grows if it is time. Local.
  void update();

  const Options& options() const { return options_; }
  /// 0-d f32, changed in place by update(): copy what is to be kept.
  const Tensor& current_scale() const { return scale_.value(); }
  /// Skipped so far, those before a resume included.
  const Tensor& skipped_steps() const { return skipped_steps_.value(); }
  /// Slots by name, which are part of a checkpoint, between steps: {"scale", slot}.
  std::vector<std::pair<std::string, Slot*>> state();
  /// A step was left: what unscale() has seen in it does not count. Local.
  void forget_step();
  /// The scalers of this rank that live, in the order in which they were made.
  static std::vector<LossScaler*> living();

 private:
  void move_to(Device device);

  const Options options_;
  Slot scale_, good_steps_, skipped_steps_;
  Slot finite_;  // bool: what unscale() has seen since the last update(); true between steps
  Registered<LossScaler> registered_{this};
};

}  // namespace sherd::nn
