#pragma once
// What a call of fully_shard() has made of its modules: its units, what it was told of when to gather, and its place in
// a tree. The modules own it by their hook (fully_shard_hook.h).
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/parallel/shard/unit/unit_knobs.h"
#include "nn/parallel/shard/wrap/shard_tree.h"
#include "nn/parallel/shard/wrap/unit_agreement.h"
#include "nn/parallel/shard/wrap/unit_use.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

struct PlannedCall;

class Wrap final : public std::enable_shared_from_this<Wrap> {
 public:
  /// Makes its units.
  explicit Wrap(PlannedCall call);
  ~Wrap() {
    if (tree_) tree_->forget(*this);
  }

  const std::string& name() const { return name_; }
  /// Their addresses only: they may be gone.
  const std::vector<Module*>& modules() const { return modules_; }
  const MixedPrecision& precision() const { return policy_; }
  /// The mesh of its call.
  const DataMesh& data() const { return mesh_; }
  ProcessGroup& root_group() const { return mesh_.root_group(); }

  /// One for all parameters of the call, but those on other meshes and those that stay replicated.
  std::vector<std::unique_ptr<Unit>> units;
  UnitUse use{*this};
  /// Error naming the module if no parameters are its own.
  const std::vector<std::unique_ptr<Unit>>& own_units() const;
  Unit* unit_of(const ShardKeeper& keeper) const;
  bool owns(const ShardKeeper& keeper) const { return unit_of(keeper) != nullptr; }
  /// Whether its gathers communicate.
  bool gathers() const;
  bool has_values() const;

  HostState<GatherKnobs> knobs{[](const void* wrap) { return static_cast<const Wrap*>(wrap)->name_; }, this};
  bool reshards() const { return knobs.all().is_told ? knobs.all().reshards : !is_root_; }
  /// Collective where it makes groups of ranks, see UnitHandle.
  void set_reshard_after_forward(ReshardAfterForward value);
  /// Error if it is below the root of a tree.
  void set_is_last_backward(bool value);
  void set_forward_prefetch(std::vector<std::weak_ptr<Wrap>> list);
  void set_backward_prefetch(std::vector<std::weak_ptr<Wrap>> list);
  /// Gathers what is listed for this phase, or else what is expected. Submitted before the module computes, so that it
  /// runs beside it.
  void prefetch(StepPhase phase, UnitId expected) const;

  const std::shared_ptr<ShardTree>& tree() const { return tree_; }
  UnitId id() const { return id_; }
  bool is_root() const { return is_root_; }
  /// Error naming `call` if it is below the root of a tree.
  void check_is_root(std::string_view call) const;
  /// Places of its calls in the last forward of the root.
  std::vector<int> order_in_forward() const;

  /// What ranks of a group compare of it, of the parts that communicate over the group; nothing if it does not.
  std::optional<Facts> facts_over(const ProcessGroup& group) const;
  /// Before it gathers by itself, in no forward of its tree: compares it, or the tree, with other ranks', once.
  void agree();
  bool is_agreed() const;
  void compare_again() { is_agreed_ = false; }

 private:
  friend struct ShardTree;
  void note_reshards(bool on);
  void note_slices();

  std::string name_, strategy_;
  std::vector<Module*> modules_;
  MixedPrecision policy_;
  DataMesh mesh_;
  std::shared_ptr<ShardTree> tree_;
  UnitId id_ = kNoUnit;
  // Replace the recorded order where they are not empty.
  std::vector<std::weak_ptr<Wrap>> forward_prefetch_, backward_prefetch_;
  bool is_root_ = false;
  bool prefetches_ = true;
  bool is_agreed_ = false;  // before it was in a tree
};

/// The error about a module, by its path.
inline constexpr char kNotWrapped[] =
    "module \"{}\" is not wrapped by fully_shard; call fully_shard() or shard_units() on it first";
/// The wrap of a wrapped module, or null.
Wrap* wrap_of(const Module& module);
/// Error unless the module is wrapped.
Wrap& wrapped(Module& module);
/// The wraps of the subtree in module order, each once: several modules may have one.
std::vector<Wrap*> wraps_below(Module& root);

}  // namespace sherd::nn
