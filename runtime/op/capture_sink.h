#pragma once
// What the dispatcher tells a recorder while a step is being captured. `compile` implements it; runtime only
// knows that it may be there.
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/op/tensor.h"

namespace sherd {

class Slot;
struct Op;
class AttrsView;

/// What a step does because of something that is no tensor, in words: a recording holds while they are what they were.
struct StepSetting {
  std::string text;
};

class CaptureSink {
 public:
  /// A device-level call is about to run. Memory of inputs that the recorder holds on to now is not donated.
  virtual void prepare(const Op& op, std::span<const Tensor> in) = 0;
  /// A device-level call has run. `out` holds fresh tensors, or aliases of inputs (donation, in-place rows), or the
  /// destinations that were passed in. Views are not reported: a tensor is a storage and a recipe.
  virtual void record(const Op& op, AttrsView attrs, std::span<const Tensor> in, std::span<const Tensor> out,
                      bool accumulate) = 0;
  /// Whether a call of this recording has used the bytes. A call that is left out because of what it would find there
  /// is one that a replay may need.
  virtual bool has_seen(const Storage& storage) const = 0;
  /// A slot was given another tensor by the program.
  virtual void slot_assigned(Slot& slot) = 0;
  /// The program looks at a slot's gradient, or is about to give it another one or none.
  virtual void grad_used(const Slot& slot) = 0;
  /// The step has read this setting, which recordings keep alive; or changed it, and then what it reads is its own.
  virtual void setting_read(const std::shared_ptr<const StepSetting>& setting) = 0;
  virtual void setting_changed(const std::shared_ptr<const StepSetting>& setting) = 0;
  /// Throws: a captured step cannot depend on values read back to the host.
  virtual void refuse_read(const Tensor& tensor, std::string_view what) = 0;

 protected:
  ~CaptureSink() = default;
};

}  // namespace sherd
