#pragma once
// A slot is the only thing that changes: a named cell holding a tensor, with one autograd leaf for life.
// Parameters, buffers, optimizer state, the learning rate and the step counter are slots.
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/autograd/node.h"
#include "runtime/exec/rank_register.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class Slot;

/// What completing gradients reads of the slots of a rank beside them.
struct GradHooks {
  std::int64_t added = 0;
  static constexpr AttrField fields[] = {
      attr<&GradHooks::added>("added").seen_by(SeenBy::guard, "every gradient that is complete")};
};

/// Where gradients of a slot land. The default keeps them in slot.grad(); fully_shard puts its group's buffer here.
class GradSink {
 public:
  /// A buffer the next contribution may be written to directly.
  struct Destination {
    Tensor buffer;  ///< undefined: the contribution makes its own tensor and hands it to accept()
    bool accumulate = false;
  };
  virtual Destination destination(Slot& slot) = 0;
  /// The destination has been written.
  virtual void wrote(Slot& slot) = 0;
  /// A contribution that was computed elsewhere.
  virtual void accept(Slot& slot, Tensor gradient) = 0;
  /// All contributions of this backward pass are in. Runs the slot's post-accumulate hooks, now or after reduction.
  virtual void finish(Slot& slot) = 0;
  /// The backward pass was left by an exception; contributions may be missing.
  virtual void abandon(Slot& slot, std::string_view reason) noexcept { (void)slot, (void)reason; }
  /// The slot's gradient is about to be cleared: what the sink has for it of earlier passes goes too.
  virtual void cleared(Slot& slot) { (void)slot; }
  /// Whether the sink has gradients of earlier passes that are not in slot.grad() yet.
  virtual bool holds_more(const Slot& slot) const { return (void)slot, false; }
  /// Where the sum over leaves (autograd/leaves.h) is written, and what of_leaf() makes of a contribution to it that
  /// was computed elsewhere: in one layout.
  virtual Destination home_of_leaves(Slot& slot) { return destination(slot); }
  virtual Tensor of_leaf(Slot& slot, Tensor gradient) { return (void)slot, gradient; }

 protected:
  ~GradSink() = default;
};

class Slot : NoCopy {
 public:
  explicit Slot(std::string name, bool requires_grad = false);
  ~Slot();

  const std::string& name() const { return name_; }
  void rename(std::string name) { name_ = std::move(name); }
  bool has_value() const { return value_.defined(); }
  /// The tensor; it points to this slot's leaf when gradients are wanted.
  const Tensor& value() const;

  /// Puts another tensor into the slot. Recorded by capture: replay puts its own result here.
  void set(const Tensor& tensor);
  /// Overwrites the bytes in place (plain: of this rank; else the same layout; converts dtype), bumps their version.
  void assign(const Tensor& values);
  /// A state change of the same parameter (sharded <-> gathered); `tensor` came from attach(). Not recorded.
  void present(Tensor tensor);
  /// What is there between steps, whatever is presented now.
  const Tensor& kept_value() const;
  /// The tensor with this slot's leaf, for present().
  Tensor attach(const Tensor& tensor) const;

  /// Torn: a step, or a load, was left while it changed this value and others; `torn()` says why, empty if it is whole.
  /// set(), assign(), and a load make it whole.
  const std::string& torn() const { return torn_; }
  void mark_torn(std::string_view reason) {
    if (!is_of_step_) torn_ = reason;
  }
  void mark_whole() { torn_.clear(); }
  /// Its value is of one step, not kept from step to step: never torn.
  void set_of_step() { is_of_step_ = true; }
  bool is_of_step() const { return is_of_step_; }

  bool requires_grad() const { return requires_grad_; }
  void set_requires_grad(bool on);
  /// All three are seen by capture: a replay holds for slots whose gradient was there, or was not, as in the recording.
  const Tensor& grad() const;
  void set_grad(Tensor grad);
  /// Also what the sink has for it of earlier passes.
  void clear_grad();

  GradSink& sink() const { return *sink_; }
  /// Null restores the default sink. `place` is the sink's own: where it keeps what belongs to this slot. Steps that
  /// were captured before and use the slot are recorded again.
  void set_sink(GradSink* sink, std::size_t place = 0);
  std::size_t sink_place() const { return sink_place_; }
  /// Runs after the gradient of a backward pass is complete (and reduced); one that is added by a hook that runs, from
  /// the next gradient on. Steps that were captured before are recorded again.
  void on_grad_accumulated(std::function<void(Slot&)> hook, HookOptions options = {});
  bool has_grad_hooks() const;
  /// How often it was given a hook or another sink.
  std::uint64_t num_told() const { return num_told_; }
  /// Error while a step is being captured if a hook is not capturable.
  void run_grad_hooks();
  Leaf* leaf() const { return static_cast<Leaf*>(leaf_.get()); }
  /// Where its changes are counted, whatever thread makes them.
  const std::shared_ptr<RankRegister>& home() const { return registered_.home(); }

 protected:
  /// Undefined: value() is all there is.
  void keep(Tensor tensor);

 private:
  std::string name_;
  Tensor value_, kept_, grad_;
  NodeRef leaf_;
  GradSink* sink_;
  std::size_t sink_place_ = 0;
  struct Hook {
    std::function<void(Slot&)> function;
    HookOptions options;
  };
  std::list<Hook> hooks_;  // one that runs stays where it is while others are added
  std::uint64_t num_told_ = 0;
  bool requires_grad_;
  bool is_of_step_ = false;
  std::string torn_;
  Registered<Slot> registered_{this};
};

/// The slots that this rank has made and that live, in the order of making: state, which a capture knows from
/// temporaries.
std::vector<Slot*> living_slots();

}  // namespace sherd
