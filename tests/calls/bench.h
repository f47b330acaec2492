#pragma once
// Tries calls with a tensor that is not there, in every way and mode, and has a value for every type of parameter that
// a public call has. The calls are listed from the headers by list_calls.py.
#include <gtest/gtest.h>
#include <sherd/sherd.h>

#include <set>
#include <tuple>

#include "runtime/autograd/node.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/optimizer.h"
#include "tests/support/bad_inputs.h"

namespace sherd::testing {

enum class Way : std::uint8_t { empty, released, on_meta, on_other_mesh, on_dead_mesh, of_other_rank };
inline constexpr Way kWays[] = {Way::empty,         Way::released,     Way::on_meta,
                                Way::on_other_mesh, Way::on_dead_mesh, Way::of_other_rank};
inline std::string_view name(Way way) {
  constexpr std::string_view names[] = {"empty",           "released",       "on meta",
                                        "on another mesh", "on a dead mesh", "of another rank"};
  return names[static_cast<std::size_t>(way)];
}

enum class Mode : std::uint8_t { eager, captured, backward };

/// Values for parameters, and the calls. One of a rank.
class Bench {
 public:
  explicit Bench(const std::shared_ptr<ProcessGroup>& group)
      : group_(group),
        mesh_(group, "here"),
        other_mesh_(group, {{"there", 1}, {"rank", group->size()}}),
        optimizer_(linear_.parameters()),
        other_rank_([this] { theirs_ = ones({2, 2}); }) {
    for (nn::Module* module :
         std::initializer_list<nn::Module*>{&linear_, &embedding_, &layer_norm_, &rms_norm_, &dropout_, &attention_,
                                            &gelu_, &swiglu_, &gpt_block_, &llama_block_, &gpt_, &llama_})
      module->materialize(nn::Seed{1});
    slot_.set(ones({2, 2}));
    const DeviceMesh dead(group, {{"gone", 1}, {"with_it", group->size()}});
    on_dead_mesh_ = Tensor::distributed({2, 2}, Spec::of(dead, {Replicate(), Replicate()}), ones({2, 2}));
  }

  /// Tries the call with each of its tensors bad in every way.
  template <class R, class... A>
  void function(std::string_view name, std::vector<std::string> names, unsigned optional, R (*call)(A...)) {
    try_each<A...>(name, names, optional,
                   [call](auto&&... args) -> decltype(auto) { return call(std::forward<decltype(args)>(args)...); });
  }
  template <class R, class C, class... A>
  void method(std::string_view name, std::vector<std::string> names, unsigned optional, R (C::*call)(A...)) {
    of_object<C, A...>(name, names, optional, call);
  }
  template <class R, class C, class... A>
  void method(std::string_view name, std::vector<std::string> names, unsigned optional, R (C::*call)(A...) const) {
    of_object<C, A...>(name, names, optional, call);
  }

  int num_calls() const { return num_calls_; }

 private:
  template <class C, class... A>
  void of_object(std::string_view name, std::vector<std::string> names, unsigned optional, auto call) {
    if constexpr (std::is_same_v<C, Tensor>) {
      names.insert(names.begin(), "*this");
      try_each<Tensor, A...>(name, names, optional << 1, [call](Tensor object, auto&&... args) -> decltype(auto) {
        return (object.*call)(std::forward<decltype(args)>(args)...);
      });
    } else {
      try_each<A...>(name, names, optional, [call, this](auto&&... args) -> decltype(auto) {
        return (object_of<C>().*call)(std::forward<decltype(args)>(args)...);
      });
    }
  }

  template <class T>
  static constexpr bool is_tensor =
      std::is_same_v<T, Tensor> || std::is_same_v<T, std::span<const Tensor>> || std::is_same_v<T, std::vector<Tensor>>;

  template <class... A>
  void try_each(std::string_view name, const std::vector<std::string>& names, unsigned optional, const auto& call) {
    constexpr bool tensors[] = {is_tensor<std::decay_t<A>>...};
    for (std::size_t bad = 0; bad < sizeof...(A); ++bad) {
      if (!tensors[bad]) continue;
      for (const Way way : kWays)
        for (const Mode mode : {Mode::eager, Mode::captured, Mode::backward}) {
          const bool may_be_empty = (optional >> bad & 1u) || takes_empty(name, names[bad]);
          const std::string text =
              fmt::format("{}, {} {}, mode {}", name, names[bad], testing::name(way), static_cast<int>(mode));
          try_one<A...>(text, names, bad, way, mode, may_be_empty, call);
        }
    }
  }

  // By their documentation.
  static bool takes_empty(std::string_view name, std::string_view parameter) {
    static const std::set<std::pair<std::string_view, std::string_view>> all = {
        {"sherd::Tensor::defined", "*this"},
        {"sherd::Tensor::meta", "*this"},
        {"sherd::Tensor::impl", "*this"},
        {"sherd::describe", "tensor"},
        {"sherd::to_string", "tensor"},
        {"sherd::layer_norm", "weight"},
        {"sherd::layer_norm", "bias"},
        {"sherd::rms_norm", "weight"},
        {"sherd::power_sum_from", "before"},
        {"sherd::Slot::set_grad", "grad"},
        {"sherd::Slot::present", "tensor"},
        {"sherd::nn::Gpt::forward", "targets"},
        {"sherd::nn::Llama::forward", "targets"},
    };
    return all.contains({name, parameter});
  }

  template <class... A>
  void try_one(const std::string& text, const std::vector<std::string>& names, std::size_t bad, Way way, Mode mode,
               bool may_be_empty, const auto& call) {
    ++num_calls_;
    last = text;
    const auto run = [&] { run_once<A...>(names, bad, way, mode, call, std::index_sequence_for<A...>{}); };
    if (mode != Mode::captured) return expect_sound(text, way, may_be_empty, run);
    const std::vector<Tensor> argument{ones({1})};
    CompiledStep step(
        [&](std::span<const Tensor> in) {
          run();
          return std::vector<Tensor>{in[0] * 2.0};
        },
        CompileOptions{});
    for (int i = 0; i < 2; ++i) expect_sound(text, way, may_be_empty, [&] { step(argument); });
  }

  static void expect_sound(const std::string& text, Way way, bool may_be_empty, const auto& run) {
    try {
      run();
    } catch (const Error& error) {
      const std::string_view what = error.what();
      const bool says_so = what.find("empty") != what.npos || what.find("undefined") != what.npos;
      EXPECT_TRUE(way != Way::empty || says_so) << text << ": " << what;
      return;
    }
    EXPECT_FALSE(way == Way::empty && !may_be_empty) << text << ": the call went through";
  }

  template <class... A, std::size_t... I>
  void run_once(const std::vector<std::string>& names, std::size_t bad, Way way, Mode mode, const auto& call,
                std::index_sequence<I...>) {
    with_grad_ = mode == Mode::backward;
    to_release_ = Tensor();
    auto values = std::tuple{value(std::type_identity<std::decay_t<A>>(), names[I], bad == I ? &way : nullptr)...};
    using Result = decltype(call(pass<A>(std::get<I>(values))...));
    if constexpr (std::is_same_v<Result, Tensor>) {
      const Tensor result = call(pass<A>(std::get<I>(values))...);
      if (to_release_.defined()) to_release_.storage()->release_data();
      if (with_grad_ && result.defined() && result.requires_grad())
        backward(result,
                 {.grad = result.is_distributed() ? full(result.shape(), 1.0, nullptr_layout(result), result.dtype())
                                                  : ones(result.shape(), result.dtype(), result.device())});
    } else {
      call(pass<A>(std::get<I>(values))...);
    }
  }
  static const Spec* nullptr_layout(const Tensor& t) { return &Spec::from(t); }

  // A reference to an object that is no copy, or the value.
  template <class A, class V>
  static decltype(auto) pass(V& value) {
    if constexpr (std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>)
      return static_cast<A>(*value);
    else if constexpr (std::is_pointer_v<V> && !std::is_pointer_v<std::decay_t<A>>) return static_cast<A>(*value);
    else if constexpr (std::is_same_v<std::decay_t<A>, std::span<const Tensor>>) return std::span<const Tensor>(value);
    else if constexpr (std::is_reference_v<A>) return static_cast<A>(value);
    else return static_cast<A>(std::move(value));
  }

  // ---- tensors ----

  Tensor good(std::string_view name) const {
    if (name == "ids" || name == "index" || name == "targets" || name == "tokens")
      return Tensor::from<std::int64_t>({0, 1, 1, 0}, {2, 2});
    if (name == "condition") return Tensor::from<bool>({true, false, true, false}, {2, 2});
    if (name == "step") return Tensor::scalar(3, DType::i64);
    if (name == "norm" || name == "lr" || name == "scale" || name == "loss" || name == "counts")
      return Tensor::scalar(0.5, DType::f32);
    return ones({2, 2});
  }

  Tensor tensor(std::string_view name, const Way* bad) {
    if (!bad) return attached(good(name));
    switch (*bad) {
      case Way::empty: return {};
      case Way::released: {
        const Tensor t = owned_copy(good(name), owner_);
        if (with_grad_) to_release_ = t;
        else t.storage()->release_data();
        return attached(t);
      }
      case Way::on_meta: {
        const Tensor t = good(name);
        return attached(Tensor::empty(t.shape(), t.dtype(), Device::meta()));
      }
      case Way::on_other_mesh: {
        const Tensor t = good(name);
        return attached(Tensor::distributed(t.shape(), Spec::of(other_mesh_, {Replicate(), Replicate()}), t));
      }
      case Way::on_dead_mesh: return attached(on_dead_mesh_);
      case Way::of_other_rank: return theirs_;
    }
    return {};
  }
  Tensor attached(const Tensor& t) {
    if (!with_grad_ || !is_floating(t.dtype())) return t;
    return leaf_.attach(t);
  }

  // ---- a value of each type ----

  Tensor value(std::type_identity<Tensor>, std::string_view name, const Way* bad) { return tensor(name, bad); }
  std::vector<Tensor> value(std::type_identity<std::vector<Tensor>>, std::string_view name, const Way* bad) {
    return {attached(good(name)), tensor(name, bad)};
  }
  std::vector<Tensor> value(std::type_identity<std::span<const Tensor>>, std::string_view name, const Way* bad) {
    return {attached(good(name)), tensor(name, bad)};
  }
  std::vector<int> value(std::type_identity<std::vector<int>>, std::string_view name, const Way*) {
    return name == "order" ? std::vector<int>{1, 0} : std::vector<int>{0};
  }
  ProcessGroup* value(std::type_identity<ProcessGroup>, std::string_view, const Way*) { return group_.get(); }
  nn::Module* value(std::type_identity<nn::Module>, std::string_view, const Way*) { return &linear_; }
  nn::Optimizer* value(std::type_identity<nn::Optimizer>, std::string_view, const Way*) { return &optimizer_; }
  using Loss = std::function<Tensor(std::span<const Tensor>)>;
  Loss value(std::type_identity<Loss>, std::string_view, const Way*) {
    return [](std::span<const Tensor> in) { return sum(in.back()); };
  }
  const DeviceMesh* value(std::type_identity<DeviceMesh>, std::string_view, const Way*) { return &mesh_; }
  const Spec* value(std::type_identity<const Spec*>, std::string_view, const Way*) {
    return Spec::of(mesh_, {Replicate()});
  }
  const Distributed* value(std::type_identity<const Distributed*>, std::string_view, const Way*) {
    return Spec::of(mesh_, {Replicate()});
  }
  Placement value(std::type_identity<Placement>, std::string_view, const Way*) { return Replicate(); }
  std::span<const Placement> value(std::type_identity<std::span<const Placement>>, std::string_view, const Way*) {
    static const Placement one[] = {Replicate()};
    return one;
  }
  std::initializer_list<Placement> value(std::type_identity<std::initializer_list<Placement>>, std::string_view,
                                         const Way*) {
    static const std::initializer_list<Placement> one{Replicate()};
    return one;
  }
  GradHook value(std::type_identity<GradHook>, std::string_view, const Way*) {
    return [](const Tensor&) { return Tensor(); };
  }
  std::string_view value(std::type_identity<std::string_view>, std::string_view, const Way*) { return "ij,jk->ik"; }
  Shape value(std::type_identity<Shape>, std::string_view, const Way*) { return {2, 2}; }
  std::vector<std::int64_t> value(std::type_identity<std::vector<std::int64_t>>, std::string_view, const Way*) {
    return {1, 1};
  }
  double value(std::type_identity<double>, std::string_view, const Way*) { return 0.5; }
  std::int64_t value(std::type_identity<std::int64_t>, std::string_view, const Way*) { return 1; }
  std::uint64_t value(std::type_identity<std::uint64_t>, std::string_view, const Way*) { return 1; }
  SgdAttrs value(std::type_identity<SgdAttrs>, std::string_view, const Way*) { return {.momentum = 0.9}; }
  /// Numbers of dims and ranks, flags, kinds, and options as they are when nobody says any.
  template <class T>
    requires(std::is_same_v<T, int> || std::is_same_v<T, bool> || std::is_enum_v<T> || std::is_aggregate_v<T> ||
             std::is_same_v<T, NodeRef>)
  T value(std::type_identity<T>, std::string_view, const Way*) {
    return T{};
  }
  template <class T>
    requires(!std::is_same_v<T, int> && !std::is_same_v<T, bool> && !std::is_enum_v<T> && !std::is_aggregate_v<T> &&
             !std::is_same_v<T, NodeRef>)
  T value(std::type_identity<T>, std::string_view, const Way*) = delete;  // a new type of parameter: add a value for it

  // ---- an object of each class ----

  template <class C>
  C& object_of() {
    return std::get<C&>(std::tie(linear_, embedding_, layer_norm_, rms_norm_, dropout_, attention_, gelu_, swiglu_,
                                 gpt_block_, llama_block_, gpt_, llama_, parameter_, slot_, scaler_, optimizer()));
  }
  nn::Optimizer& optimizer() { return optimizer_; }

  std::shared_ptr<ProcessGroup> group_;
  DeviceMesh mesh_, other_mesh_;
  nn::Linear linear_{2, 2};
  nn::Embedding embedding_{4, 2};
  nn::LayerNorm layer_norm_{2};
  nn::RmsNorm rms_norm_{2};
  nn::Dropout dropout_{0.5};
  nn::Attention attention_{{.width = 2, .heads = 1, .kv_heads = 1}};
  nn::GeluMlp gelu_{{.width = 2, .hidden = 4}};
  nn::SwiGluMlp swiglu_{{.width = 2, .hidden = 4}};
  nn::Gpt::Config gpt_config_{.vocabulary = 4, .tokens = 2, .layers = 1, .heads = 1, .width = 4};
  nn::Llama::Config llama_config_{
      .vocabulary = 4, .tokens = 2, .layers = 1, .heads = 1, .kv_heads = 1, .width = 4, .hidden = 4};
  nn::Gpt::Block gpt_block_{gpt_config_};
  nn::Llama::Block llama_block_{llama_config_};
  nn::Gpt gpt_{gpt_config_};
  nn::Llama llama_{llama_config_};
  nn::Parameter parameter_{"parameter", {2, 2}, nn::Init::zeros(), DType::f32};
  Slot slot_{"slot"}, leaf_{"leaf", true};
  nn::LossScaler scaler_{};
  nn::Sgd optimizer_;
  AwayOwner owner_;
  Tensor on_dead_mesh_, theirs_, to_release_;
  OtherRank other_rank_;
  bool with_grad_ = false;
  int num_calls_ = 0;

 public:
  std::string last;  ///< call, for a debugger
};

/// All of them; list_calls.py writes its body.
void try_public_calls(Bench& bench);

}  // namespace sherd::testing
