#pragma once
// What the dispatcher tells a recorder while a step is being captured. `compile` implements it; runtime only
// knows that it may be there.
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/op/core/tensor.h"

namespace sherd {

class Slot;
struct Op;
class RankRegister;
class AttrsView;

/// A condition, in words, that a step's behaviour depends on and that is no tensor: a recording is valid while its
/// conditions are what they were.
struct StepSetting {
  std::string text;    ///< its value
  std::string name{};  ///< whose it is, and what: "blocks.3.drop training"; the same from run to run, see step_names.h
  std::shared_ptr<const RankRegister> home{};  ///< counts its changes
};

class CaptureSink {
 public:
  /// A device-level call is about to run. Memory of inputs that the recorder holds on to now is not donated.
  virtual void prepare(const Op& op, std::span<const Tensor> in) = 0;
  /// A device-level call has run. `out` holds fresh tensors, or aliases of inputs (donation, in-place rows), or the
  /// destinations that were passed in. Views are not reported: a tensor is a storage and a recipe.
  virtual void record(const Op& op, AttrsView attrs, std::span<const Tensor> in, std::span<const Tensor> out,
                      bool accumulate) = 0;
  /// Whether a call of this recording has used the bytes. If so, a call must not be skipped because of what the bytes
  /// hold now: a replay may need it.
  virtual bool has_seen(const Storage& storage) const = 0;
  /// The program put another tensor into a slot.
  virtual void slot_assigned(Slot& slot) = 0;
  /// The program reads a slot's value, or is about to replace it.
  virtual void value_used(const Slot& slot) = 0;
  /// The program reads a slot's gradient, or is about to replace or clear it.
  virtual void grad_used(const Slot& slot) = 0;
  /// The step has read this setting, which recordings keep alive. Or it has changed it: what it reads afterwards is
  /// its own value, on which the recording does not depend.
  virtual void setting_read(const std::shared_ptr<const StepSetting>& setting) = 0;
  virtual void setting_changed(const std::shared_ptr<const StepSetting>& setting) = 0;
  /// Throws: a captured step cannot depend on values read back to the host.
  virtual void refuse_read(const Tensor& tensor, std::string_view what) = 0;

 protected:
  ~CaptureSink() = default;
};

}  // namespace sherd
