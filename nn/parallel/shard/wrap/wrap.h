#pragma once
// Wiring: which hook does what when. What is done then is a function of the recorded calls (unit_schedule.h); bytes are
// moved by unit_buffers.h, gradients by gradient_arrival.h and route_run.h.
//
//   before forward   first module to run becomes the root of the tree; gather, register full tensors; gather the next
//   after forward    reshard as configured; hook the outputs' gradients
//   output gradient  (the backward of a call begins) reshard units whose backward is over; gather again if resharded;
//                    gather the next
//   last gradient    of the unit: reduce; reshard, unless the tape still has readers of gathered parameters
//   end of backward  reduce the gradients of units that did not complete, reshard everything
//
// "Gather the next" is what hides communication: it is submitted before the module computes and overlaps with it.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/parallel/shard/unit/unit_schedule.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/unit.h"
#include "nn/parallel/shard/wrap/unit_agreement.h"

namespace sherd::nn {

struct PlannedCall;

// All wrapped modules below one root share this.
struct ShardTree {
  std::vector<Wrap*> wraps;  // by UnitId: in module order, then who joined later; null once destroyed
  UnitSchedule schedule;
  std::shared_ptr<Unit::BackwardEnd> end =
      std::make_shared<Unit::BackwardEnd>([this] { end_backward(is_last); }, [this] { agree(); });
  int depth = 0;                          // of wrapped forwards that run
  bool is_last = true;                    // the next backward, of those that belong together
  int num_gathering = 0;                  // wraps whose gathers communicate
  bool is_whole = true;                   // no module was wrapped below the root since it was linked
  std::vector<std::weak_ptr<Wrap>> late;  // those that were without values then
  std::vector<std::weak_ptr<Wrap>> news;  // whose units have not been compared with other ranks'

  void add(Wrap& wrap);
  /// Whether a forward communicates: parameters are sharded over ranks.
  bool gathers() const { return num_gathering > 0; }
  /// Compares units that are new with other ranks' (unit_agreement.h). Before any of them communicates.
  void agree();
  /// All are new again. After an error: it may have met some ranks when they had compared, and others just before.
  void compare_again();
  bool has_news() const;
  void drop_unused() const;
  void close_rounds() const;
  void end_backward(bool is_last_of_all);
  void abandon(std::string_view reason) noexcept;
};

class Wrap final : public ModuleHook, public std::enable_shared_from_this<Wrap> {
 public:
  /// Makes its units; its modules have it as a hook after that.
  explicit Wrap(PlannedCall call);
  ~Wrap() override {
    if (!tree_) return;
    tree_->wraps[static_cast<std::size_t>(id_)] = nullptr;
    tree_->num_gathering -= gathers() ? 1 : 0;
  }

  void before_forward(Module& module) override;
  void after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) override;
  void abandon_forward(Module& module, std::string_view reason) noexcept override;
  void before_materialize(Module&, Device device) override {
    for (const auto& unit : units) unit->materialize(device);
  }
  void before_cast(Module&, DType dtype) override;
  bool maps_inputs() const override { return policy_.cast_forward_inputs && policy_.param_dtype; }
  bool maps_outputs() const override { return policy_.output_dtype.has_value(); }
  void map_input(Module&, Tensor& tensor, TensorPlace) override { cast_floating(tensor, *policy_.param_dtype); }
  void map_output(Module&, Tensor& tensor, TensorPlace) override { cast_floating(tensor, *policy_.output_dtype); }
  /// What is gathered for the module's backward is there when its ops run again.
  bool can_recompute() const override { return true; }
  const DeviceMesh* data_mesh() const override { return &mesh_.mesh(); }

  const std::string& name() const { return name_; }
  bool reshards() const { return knobs.all().is_told ? knobs.all().reshards : !is_root_; }
  /// Collective where it makes groups of ranks, see fully_shard.h.
  void set_reshard_after_forward(ReshardAfterForward value);
  void set_is_last(bool value) {
    knobs.set<&GatherKnobs::is_last>(value);
    if (tree_) tree_->is_last = value;
  }
  void set_forward_prefetch(std::vector<std::weak_ptr<Wrap>> list);
  void set_backward_prefetch(std::vector<std::weak_ptr<Wrap>> list);
  bool is_root() const { return is_root_; }
  /// Error naming `call` if it is below the root of a tree.
  void check_is_root(std::string_view call) const;
  const std::shared_ptr<ShardTree>& tree() const { return tree_; }
  /// Error naming the module if no parameters are its own.
  const std::vector<std::unique_ptr<Unit>>& own_units() const;
  bool owns(const ShardKeeper& keeper) const { return unit_of(keeper) != nullptr; }
  Unit* unit_of(const ShardKeeper& keeper) const;
  /// Gathers a unit of another wrap, too, while its own modules compute: they share a parameter.
  void borrow(Wrap& owner, Unit& unit);
  void begin_round();
  /// Reshards as configured what no other call uses.
  void close_round();
  void leave_round();
  /// Places of its calls in the last forward of the root.
  std::vector<int> order_in_forward() const;
  ProcessGroup& root_group() const { return mesh_.root_group(); }
  /// The mesh of its call.
  const DataMesh& data() const { return mesh_; }
  /// What ranks of a group compare of it, of the parts that communicate over the group; nothing if it does not.
  std::optional<UnitFacts> facts_over(const ProcessGroup& group) const;
  /// Whether its gathers communicate.
  bool gathers() const;
  /// Before it gathers by itself, in no forward of its tree: compares it, or the tree, with other ranks', once.
  void agree();
  bool is_agreed() const;
  void compare_again() { is_agreed_ = false; }

  /// One for all parameters of the call, but those on other meshes and those that stay replicated.
  std::vector<std::unique_ptr<Unit>> units;
  HostState<GatherKnobs> knobs{[](const void* wrap) { return static_cast<const Wrap*>(wrap)->name_; }, this};

 private:
  friend struct ShardTree;
  /// A forward call, as its outputs remember it.
  struct ForwardCall {
    std::weak_ptr<Wrap> wrap;
    UnitSchedule::Call call;
    std::uint64_t begun;               // nodes of its own have larger numbers
    std::optional<DeviceMesh> mesh{};  // of the root: there for backward, whatever has become of the model
    std::uint64_t pass = 0;            // the backward that has reached it last
  };
  struct OutputHook;
  /// A forward that runs, or another method in its place.
  struct Running {
    const Module* module;
    std::uint64_t begun;  // nodes of its own have larger numbers
  };
  /// A unit with a parameter that modules of this wrap use too.
  struct Borrowed {
    std::weak_ptr<Wrap> owner;  // has the unit
    Unit* unit;
  };
  /// Its own units and those it borrows, each with the wrap that has it.
  void each_unit(const auto& visit) const;
  bool borrows(const Unit& unit) const;
  void note_reshards(bool on);
  void note_slices();
  bool uses_none() const { return units.empty() && borrowed_.empty(); }
  void unshard() const;
  bool has_values() const;
  void join_or_make_tree(Module& module);
  void join_or_tell(Module& module);
  void join(Module& module, const std::shared_ptr<ShardTree>& tree);
  void become_root(Module& module);
  void enter_forward(bool begins);
  bool is_running(const Module& module) const {
    return std::ranges::find(running_, &module, &Running::module) != running_.end();
  }
  UnitSchedule::Call leave_forward(Module& module);
  void hook_outputs(UnitSchedule::Call call, std::uint64_t begun,
                    const std::function<void(const TensorVisitor&)>& visit_outputs);
  void before_backward(ForwardCall& call);
  void prefetch(const std::vector<std::weak_ptr<Wrap>>& listed, UnitId expected) const;

  std::string name_, strategy_;
  std::vector<Module*> modules_;  // their addresses only: they may be gone
  MixedPrecision policy_;
  DataMesh mesh_;
  std::shared_ptr<ShardTree> tree_;
  UnitId id_ = kNoUnit;
  std::vector<Borrowed> borrowed_;
  // Replace the recorded order where they are not empty.
  std::vector<std::weak_ptr<Wrap>> forward_prefetch_, backward_prefetch_;
  UnitSchedule::Call forward_call_;  // the last that began
  std::vector<Running> running_;     // the innermost last
  std::vector<Module*> awaited_;     // of the list: those that have not run since the first did
  bool is_root_ = false, prefetches_ = true;
  bool is_agreed_ = false;  // before it was in a tree
};

/// The error about a module, by its path.
inline constexpr char kNotWrapped[] =
    "module \"{}\" is not wrapped by fully_shard; call fully_shard() or shard_units() on it first";
/// The wrap of a wrapped module, or null.
Wrap* wrap_of(const Module& module);
/// Error unless the module is wrapped.
Wrap& wrapped(Module& module);
/// The wraps of the subtree in module order, each once: several modules may be one unit.
std::vector<Wrap*> wraps_below(Module& root);

}  // namespace sherd::nn
