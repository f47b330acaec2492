#pragma once
// Modules: a named tree that owns parameters and buffers, and one door to forward() where hooks run. A model file is
// plain mathematics; parallelism, casting and sharding attach from outside through the hooks.
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nn/init.h"
#include "nn/module_hook.h"
#include "nn/module_state.h"
#include "nn/tensor_map.h"
#include "runtime/autograd/slot.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// A trainable tensor: a slot with a shape and an initial value. Made on the meta device; materialize() gives it bytes.
/// Its address is stable; what changes is the tensor inside.
class Parameter final : public Slot {
 public:
  Parameter(std::string name, Shape shape, Init init, DType dtype);
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return sherd::numel(shape_); }
  const Init& init() const { return init_; }
  operator const Tensor&() const { return value(); }  // NOLINT: linear(x, weight) reads as mathematics
  /// True once it has values: drawn by materialize() or loaded; materialize() leaves those alone.
  bool initialised() const { return initialised_; }
  void mark_initialised() { initialised_ = true; }

  /// What is between steps in the slot, whatever is there now: this rank's shard where fully_shard has gathered it,
  /// else value(). Optimizers, clipping and checkpoints work on it.
  const Tensor& sharded_value() const { return kept_value(); }
  /// Makes value() the shard. For those who have written the shard: what was gathered of it is stale. Local.
  void reshard() const;

 private:
  friend class ShardKeeper;
  Shape shape_;
  Init init_;
  class ShardKeeper* keeper_ = nullptr;
  bool initialised_ = false;
};

/// State that is not trained and never sharded.
class Buffer final : public Slot {
 public:
  Buffer(std::string name, const Tensor& value) : Slot(std::move(name)) { set(value); }
  operator const Tensor&() const { return value(); }  // NOLINT
};

class Module : NoCopy {
 public:
  Module();
  virtual ~Module() = default;

  /// Own name within the parent ("" for a root) and the full path "blocks.3.mlp".
  const std::string& name() const { return name_; }
  std::string path() const;
  /// What messages call it: its path, "(model)" for a root without a name.
  std::string label() const;
  Module* parent() const { return parent_; }
  const std::vector<std::unique_ptr<Module>>& children() const { return children_; }

  /// A parameter by the name it has here; `shared` ones are owned by another module (tied weights).
  struct NamedParameter {
    std::string name;
    Parameter* parameter;
    bool shared = false;
  };
  const std::vector<NamedParameter>& own_parameters() const { return parameters_; }
  const std::vector<std::unique_ptr<Buffer>>& own_buffers() const { return buffers_; }

  /// All parameters of the subtree, each once, under the path of its first appearance, in order of construction.
  std::vector<Parameter*> parameters() const;
  std::vector<std::pair<std::string, Parameter*>> named_parameters() const;
  std::vector<std::pair<std::string, Buffer*>> named_buffers() const;
  std::int64_t num_parameters() const;
  /// This module and all below, parents first.
  void for_each_module(const std::function<void(Module&)>& visit);
  Parameter& parameter(std::string_view path) const;  ///< Error naming the nearest path

  /// Gives every parameter that has no bytes yet its initial values, on `device`; buffers move there. On any device,
  /// any layout and any number of ranks the same seed gives the same bits: they are drawn on the host. Parameters that
  /// have values keep them, and their device.
  void materialize(Seed seed = {}, Device device = Device::cpu());
  /// The same memory without the draws, for values that are loaded next. Until they are, by a load or by materialize(),
  /// a parameter is torn: no optimizer updates it, no save takes it.
  void allocate(Device device = Device::cpu());
  /// Gives all floating-point parameters and buffers of the subtree another dtype: values are rounded once, those on
  /// meta are drawn in it. For wrapped modules too, before their first forward; before an optimizer is made. Local.
  /// Error if `dtype` is not floating-point, a parameter has a gradient, a wrapped module ran already, or a parameter
  /// is of a unit that was wrapped above this module.
  void cast_to(DType dtype);
  /// Training mode for the subtree (dropout is on); modules start in training mode.
  void train(bool on = true);
  bool training() const { return state_.get<&ModuleState::training>(); }

  /// A captured step of the model is recorded again.
  void add_hook(std::shared_ptr<ModuleHook> hook);
  /// Between forwards. No-op if the module does not have the hook. Where it was the last to be added, captured steps of
  /// before it are good again.
  void remove_hook(const ModuleHook& hook);
  const std::vector<std::shared_ptr<ModuleHook>>& hooks() const { return hooks_; }
  /// Error naming the first hook that is not marked can_recompute().
  void check_recomputable() const;

  /// `fn(args...)` between the hooks, as forward() is called: they see and may replace the tensors in its arguments and
  /// its result, and errors learn the module's path. For other methods use call_hooked().
  template <class Fn, class... Args>
  auto run_hooked(Fn&& fn, Args&&... args);

 protected:
  /// The step that is being recorded goes by what the tree is made of.
  void note_parts_read() const;

  template <class M, class... Args>
  M& add(std::string name, Args&&... args) {
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& result = *child;
    adopt(std::move(name), std::move(child));
    return result;
  }
  Parameter& add_parameter(std::string name, const Shape& shape, Init init, DType dtype = DType::f32);
  /// The same parameter under another name: tied weights.
  Parameter& share_parameter(std::string name, Parameter& other);
  Buffer& add_buffer(std::string name, const Tensor& value);

  /// Runs hooks and sets the module path around a forward.
  class ForwardScope : NoCopy {
   public:
    explicit ForwardScope(Module& module);
    ~ForwardScope();
    void finish(const std::function<void(const TensorVisitor&)>& visit_outputs);
    /// The hooks' maps of tensors, composed; null if no hook maps any.
    const TensorMap* input_map();
    const TensorMap* output_map();
    /// In a handler: adds this module's path to an error that does not know its module yet; hooks learn the reason.
    void fail();

   private:
    Module& module_;
    const std::string* outer_path_;
    std::size_t entered_ = 0;
    TensorMap map_;
    std::string reason_;
  };

 private:
  void adopt(std::string name, std::unique_ptr<Module> child);
  void rename_below();
  Module& root();
  const Module& root() const { return const_cast<Module*>(this)->root(); }
  /// The tree has grown by as many modules, parameters or buffers.
  void count_parts(std::int64_t come);
  /// Hooks of the tree below have come or gone.
  void count_hooks(int come, std::uint64_t mark);
  /// Calls `then` for each parameter that has no values, as soon as it has bytes.
  void give_memory(Device device, const std::function<void(Parameter&)>& then);
  void check_parameter_name(const std::string& name) const;

  std::string name_;
  Module* parent_ = nullptr;
  std::vector<std::unique_ptr<Module>> children_;
  std::unordered_set<std::string_view> child_names_;  // the children's own
  std::vector<NamedParameter> parameters_;
  std::vector<std::unique_ptr<Parameter>> owned_parameters_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::shared_ptr<ModuleHook>> hooks_;
  std::vector<std::uint64_t> hook_marks_;  // of each: which of all that the tree was given it is
  int num_hooks_ = 0, num_added_ = 0;      // of the tree, at its root
  std::uint64_t hooks_mark_ = 0;           // likewise: the sum of marks
  const std::string* interned_path_ = nullptr;
  HostState<ModuleState> state_;
};

template <class Fn, class... Args>
auto Module::run_hooked(Fn&& fn, Args&&... args) {
  ForwardScope scope(*this);
  try {
    const TensorMap* const map = scope.input_map();
    const auto call = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::invoke(std::forward<Fn>(fn), MappedArgument<Args>(args, map, {I, sizeof...(Args)}).get()...);
    };
    using Result = decltype(call(std::index_sequence_for<Args...>{}));
    if constexpr (std::is_void_v<Result>) {
      call(std::index_sequence_for<Args...>{});
      scope.finish([](const TensorVisitor&) {});
    } else {
      Result result = call(std::index_sequence_for<Args...>{});
      if (const TensorMap* out = scope.output_map()) map_result(result, *out);
      scope.finish([&](const TensorVisitor& visit) { visit_tensors(result, visit); });
      return result;
    }
  } catch (...) {
    scope.fail();
    throw;
  }
}

/// Calls another method than forward() with all that a call of the module has, so that fully_shard gathers and
/// reshards, casts and styles apply, and backward finds its way: `call_hooked(model.encoder, &Encoder::embed, ids)`. A
/// module without hooks is called as it is.
template <class M, class Method, class... Args>
  requires std::derived_from<M, Module> && std::is_member_function_pointer_v<Method>
auto call_hooked(M& module, Method method, Args&&... args) {
  const auto call = [&module, method](auto&&... in) { return (module.*method)(std::forward<decltype(in)>(in)...); };
  return module.run_hooked(call, std::forward<Args>(args)...);
}

/// Base of a module with `forward`: `struct Mlp : nn::Layer<Mlp> { Tensor forward(const Tensor& x); }`. Calling the
/// module is the only way in; hooks run here and errors learn the module's path.
template <class Self>
class Layer : public Module {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    const auto call = [this](auto&&... in) {
      return static_cast<Self*>(this)->forward(std::forward<decltype(in)>(in)...);
    };
    return run_hooked(call, std::forward<Args>(args)...);
  }
};

/// The module tree as text: parameters and buffers with shapes, placements and bytes, of the global tensor and, where
/// that is less, on this rank. The last line is the sum over parameters, shared ones counted once.
std::string to_string(const Module& module);

}  // namespace sherd::nn
