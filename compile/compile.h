#pragma once
// compile(step): the first call runs the step eagerly (lazy state settles), the second and the third record it while it
// runs and compare what they recorded, and from the fourth on the recording, as passes left it, is replayed, bit for
// bit equal, as long as its guards hold. After nn::reset_after_error() it starts over: all ranks run it eagerly, record
// and replay again.
//
//   auto step = sherd::compile([&](const Tensor& tokens, const Tensor& targets) {
//     Tensor loss = cross_entropy(model(tokens), targets);
//     backward(loss);
//     optimizer.step();
//     return loss;
//   });
//   for (...) print(step(tokens, targets).item<float>());
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "compile/ir/graph.h"
#include "compile/passes/pass.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/price.h"
#include "runtime/memory/memory_budget.h"

namespace sherd {

/// A step from tensors to tensors. A replay sees the arguments, the tensors in slots, the random step, and the state of
/// the library that the step reads: modes and hooks of modules, what fully_shard() units were told (compile/README.md
/// has the table). It does not see other variables: numbers, branches, tensors held outside of slots and values made on
/// the host inside the step are those of the recorded run, and an Error says so where the second recording has others.
/// Arguments and results have no autograd history. One rank, one thread. Inside another captured step it runs eagerly,
/// as part of that step.
class CompiledStep {
 public:
  using Function = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
  enum class Mode : std::uint8_t { none, eager, record, replay };
  struct Options {
    /// Ranks that run this step together, each as often as the others: before the first replay they compare their
    /// recordings (same_program.h). Later recordings, for other shapes, are not compared. Unset: all ranks of the job,
    /// if this one knows them by the first call (world_group(), DeviceMesh::world()); null: this rank runs it alone.
    std::optional<std::shared_ptr<ProcessGroup>> group{};
    /// Recordings kept for different shapes and settings: training, evaluation and a short last batch are three. The
    /// one used least recently is dropped for another, which is said once.
    std::size_t max_graphs = 8;
    /// Records each of them twice, and raises an Error where the second differs from the first: a number, a branch or a
    /// tensor of the host changes from call to call, and a replay would go on with the recorded one. The second time
    /// the step gets copies of arguments that it neither writes nor returns, so that a tensor of its own that was
    /// passed, too, is told from them. Off: records once.
    bool compare = true;
    /// Steps whose tensors are all on one device are replayed by it in one call (device_replay.h).
    bool device_graphs = true;
    /// What is done to a recording before it is replayed, in this order; each is proved when it has run (pass.h).
    std::vector<ir::Pass> passes = ir::standard_passes();
    /// Bytes that this rank may hold while a replay runs: "1.5GB", or "75%" of what it holds without a budget. What
    /// does not fit is let go and computed again, bit for bit the same. The calls before the first replay are eager
    /// ones and hold what those hold. Error at the first replay, on all ranks, where the least that the step can hold
    /// is more.
    MemoryBudget memory_budget{};
    /// Within a budget activations may also be moved to a file in this folder and back, where that is cheaper than to
    /// compute them again; those of a device to memory of the host, with an empty folder. None: they stay in memory.
    std::optional<std::string> activations_folder{};
  };

  explicit CompiledStep(Function function) : CompiledStep(std::move(function), Options()) {}
  CompiledStep(Function function, Options options);
  ~CompiledStep();
  CompiledStep(CompiledStep&&) noexcept;
  CompiledStep& operator=(CompiledStep&&) noexcept;

  /// Errors are those of the step; see Recorder for what cannot be captured, run_passes() for what a pass may not do,
  /// Interpreter for an error in a replay. A recording that ends in an error is dropped, and the next call records
  /// again.
  std::vector<Tensor> operator()(std::span<const Tensor> arguments);

  /// Begins with a recording of this step that a ghost of this rank has made, so that the first call is a replay: as
  /// the next ones are, if its guards hold. Before the first call, on all ranks of the group or on none. Errors of
  /// bind(), for slots, units and settings that are not here, and for those that hold here what its guards refuse.
  void begin_with(ir::Program recorded);
  /// Does before the first call, without its arguments, what that would do before it replays: compares the recording
  /// over the ranks and makes it fit. Collective over the group. Nothing without a recording.
  void prepare();
  /// The recording that the last call made or used, before passes; null before there is one.
  const ir::Program* recorded() const;

  /// What a replay of that recording was predicted to take before the first one, if it has a memory budget.
  struct Predicted {
    std::string notes{};       ///< what passes have done, a line
    CategoryBytes bytes{};     ///< most of each category of the rank's accounts
    std::int64_t peak = 0;     ///< most of all together
    std::int64_t without = 0;  ///< the same of the step as it was recorded, without a budget
    double seconds = 0;        ///< by `prices`; 0 without
    std::shared_ptr<const Prices> prices{};
    CategoryBytes at_peak{};  ///< what `peak` is made of
  };
  std::optional<Predicted> predicted() const;
  /// The same for a recording of this step that it does not begin with, before the first call. Collective over the
  /// group. Needs a memory budget: Error, on all ranks, if the least that the step can hold is more.
  Predicted predict(const ir::Program& recorded);

  /// How the last call ran, and why: "recorded: argument 0 is i64[4,16], the graph has i64[8,16]", "replayed by cuda:0
  /// in one call, 812 nodes; sums 2 ranks of dp in 1 level". A replay names the order of its sums (ir/analysis/sums.h).
  std::string why() const;
  Mode mode() const { return mode_; }
  /// The recording the last call made or used, as passes left it; null before there is one.
  const ir::Graph* graph() const;
  std::size_t num_graphs() const { return entries_.size(); }
  /// How often all guards of that recording were looked at; no more often once its replays have settled (run/guards.h).
  std::int64_t num_looks() const;

 private:
  struct Entry;
  std::vector<Tensor> run_eagerly(std::span<const Tensor> arguments);
  std::vector<Tensor> record(std::span<const Tensor> arguments);
  /// Records `entry` once more and compares.
  std::vector<Tensor> record_again(Entry& entry, std::span<const Tensor> arguments);
  /// Nothing if the step has met slots of other threads, which the next recording is told of.
  std::unique_ptr<Entry> record_into(std::vector<Tensor>& results, std::span<const Tensor> arguments);
  std::vector<Tensor> run_replay(Entry& entry, std::span<const Tensor> arguments);
  void forget_before_reset();
  /// `has_arguments`: those of a call are held now.
  void compare_programs(bool has_arguments);
  /// Makes what is replayed fit its bytes. Collective over the group, if one is given.
  void fit(Entry& entry, ProcessGroup* group, bool has_arguments);
  std::pair<ir::Program, Predicted> fitted(const ir::Program& recorded, const ir::Program& passed, ProcessGroup* group,
                                           bool has_arguments);
  /// The recording that fits this call, or null and `reason_`.
  Entry* find(std::span<const Tensor> arguments);

  Function function_;
  Options options_;
  std::vector<std::unique_ptr<Entry>> entries_;  // the one used last comes first
  std::vector<NodeRef> slots_of_others_;         // leaves of slots that another thread has made
  Mode mode_ = Mode::none;
  std::string reason_;
  std::int64_t num_calls_ = 0;  // until graphs are compared
  bool is_compared_ = false;
  std::optional<ir::Program> begun_with_;
  std::shared_ptr<const Prices> prices_;                // of calls, once known
  std::string refusal_;                                 // of a recording that all ranks have fitted together
  std::optional<std::shared_ptr<ProcessGroup>> group_;  // that it is run in, once that is known; null: alone
  bool has_said_room_ = false;
  std::uint64_t num_left_ = 0;  // num_left_steps() of the last call
};

using CompileOptions = CompiledStep::Options;

template <class Signature>
class CompiledFunction;

/// The same step with the signature of the function it came from: R is Tensor, std::vector<Tensor> or void.
template <class R, class... Args>
class CompiledFunction<R(Args...)> {
 public:
  static_assert((std::is_same_v<std::remove_cvref_t<Args>, Tensor> && ...), "a captured step takes tensors");
  static_assert(std::is_void_v<R> || std::is_same_v<R, Tensor> || std::is_same_v<R, std::vector<Tensor>>,
                "a captured step returns a Tensor, a std::vector<Tensor> or nothing");

  CompiledFunction(std::function<R(Args...)> function, CompileOptions options)
      : step_(adapt(std::move(function), std::index_sequence_for<Args...>{}), std::move(options)) {}

  R operator()(const std::remove_cvref_t<Args>&... arguments) {
    const std::vector<Tensor> list{arguments...};
    std::vector<Tensor> results = step_(list);
    if constexpr (std::is_same_v<R, Tensor>) return std::move(results[0]);
    else if constexpr (!std::is_void_v<R>) return results;
  }
  std::string why() const { return step_.why(); }
  CompiledStep::Mode mode() const { return step_.mode(); }
  const ir::Graph* graph() const { return step_.graph(); }
  std::size_t num_graphs() const { return step_.num_graphs(); }
  std::int64_t num_looks() const { return step_.num_looks(); }
  std::optional<CompiledStep::Predicted> predicted() const { return step_.predicted(); }

 private:
  template <std::size_t... I>
  static CompiledStep::Function adapt(std::function<R(Args...)> function, std::index_sequence<I...>) {
    return [function = std::move(function)](std::span<const Tensor> arguments) -> std::vector<Tensor> {
      (void)arguments;  // a step may take none
      if constexpr (std::is_void_v<R>) {
        function(arguments[I]...);
        return {};
      } else if constexpr (std::is_same_v<R, Tensor>) {
        return {function(arguments[I]...)};
      } else {
        return function(arguments[I]...);
      }
    };
  }
  CompiledStep step_;
};

/// Wraps a step, a lambda or function with a fixed list of tensor arguments.
template <class Fn>
auto compile(Fn function, CompileOptions options = {}) {
  std::function typed(std::move(function));
  using Called = decltype([]<class S>(const std::function<S>&) -> S* { return nullptr; }(typed));
  return CompiledFunction<std::remove_pointer_t<Called>>(std::move(typed), std::move(options));
}

}  // namespace sherd
