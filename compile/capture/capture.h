#pragma once
// Records one eager run of a step as a Graph. The recorder knows values by storage ids, which are never used twice,
// and keeps no tensor of the step alive: memory, donation and results are those of a run without it.
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/ir/analysis/byte_ranges.h"
#include "compile/ir/graph.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"

namespace sherd {

/// While it lives, all op calls of this thread are recorded. Reading a tensor's values, a hook that is not marked
/// capturable, or a step on the meta device raise Error from where they happen.
class Recorder final : public CaptureSink {
 public:
  /// Arguments must carry no autograd history. `others`: leaves of slots that another thread has made and the step may
  /// use, as met() of an earlier recording says. Error inside another recording.
  explicit Recorder(std::span<const Tensor> arguments, std::span<const NodeRef> others = {});
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Ends the recording. The step returns `results`, which may be undefined, views, arguments or slots' tensors.
  Graph finish(std::span<const Tensor> results);

  void prepare(const Op& op, std::span<const Tensor> in) override;
  void record(const Op& op, AttrsView attrs, std::span<const Tensor> in, std::span<const Tensor> out,
              bool accumulate) override;
  bool has_seen(const Storage& storage) const override { return by_storage_.contains(storage.id()); }
  void slot_assigned(Slot& slot) override;
  void value_used(const Slot& slot) override { meet(slot); }
  void grad_used(const Slot& slot) override;
  /// Leaves of slots that the step has used and another thread has made, beside those that it was told of: the
  /// recording took their tensors for constants, and is void.
  const std::vector<NodeRef>& met() const { return met_; }
  void setting_read(const std::shared_ptr<const StepSetting>& setting) override;
  void setting_changed(const std::shared_ptr<const StepSetting>& setting) override;
  void refuse_read(const Tensor& tensor, std::string_view what) override;

 private:
  /// A slot's tensor, and a slot, as they were when the recording began. Hold ids, not tensors.
  struct Seen {
    std::uint64_t storage = 0;  // 0: none
    TensorGuard guard{};        // without the layout, which is named when it is bound
    const Distributed* layout = nullptr;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  struct SlotBefore {
    NodeRef leaf;
    bool had_value = false, requires_grad = false, holds_grad_alone = false, is_gathered = false;
    Seen value{}, grad{};  // the value: that which it keeps where a unit has gathered it
    const Seen& seen(bool gradient) const { return gradient ? grad : value; }
  };
  struct Place {
    int before;  // index into before_
    bool gradient;
    bool gathered = false;  // what is there for this step only: guarded, not bound
  };
  static Seen seen(const Tensor& tensor);

  void add_argument(const Tensor& argument);
  void remember_slot(const Slot& slot);
  void meet(const Slot& slot);
  std::vector<Slot*> slots() const;
  ValueId add_value(ValueKind kind, const Tensor& tensor);
  void check_within_argument(const Tensor& tensor) const;
  void check_one_origin(const Tensor& tensor) const;
  ValueId argument_of(const Tensor& tensor) const;
  /// The value that holds `tensor`'s bytes; added if it is external and new.
  ValueId value_of(const Tensor& tensor);
  ValueId add_external(const Tensor& tensor);
  ValueId add_unit(const Tensor& tensor);
  /// kNoValue if the slots of this storage are gone.
  ValueId add_slot_value(const Tensor& tensor, std::span<const Place> places);
  TensorRef ref_to(const Tensor& tensor);
  TensorRef write_to(const Op& op, const Tensor& tensor, bool accumulate);
  TensorRef read_from(const Tensor& tensor, std::string_view reader);
  void check_writable(const Op& op, ValueId id) const;
  void note_residency(GraphNode& node);
  ModuleId module_id(const std::string* path);
  LayoutId layout_id(const Distributed* layout);  // kPlain for null
  int slot_index(const Slot& slot);
  const SlotBefore* before_of(const Slot& slot) const;
  void update(int slot, bool gradient, const Tensor& tensor);
  GraphResult result_of(const Tensor& tensor);
  void finish_gradient(Slot& slot);
  void note_requires_grad();
  void note_sole_gradients();
  void note_own_settings();
  void forget_local_slots();
  void name_slots();
  std::string origin(const Tensor& tensor) const;

  RankContext& context_;
  const std::uint64_t start_id_;  // storages of this rank with a larger id were made by the step
  Program program_;
  Live live_;
  std::unordered_map<std::uint64_t, ValueId> by_storage_;
  std::vector<std::uint64_t> argument_storages_;  // by argument
  std::vector<std::int64_t> argument_bases_;      // bytes from the storage's start
  std::vector<SlotBefore> before_;
  std::size_t num_own_before_ = 0;  // of this rank; slots of others follow
  std::vector<NodeRef> met_;
  std::vector<std::shared_ptr<const StepSetting>> own_settings_;  // that the step changes, in that order
  std::unordered_map<const StepSetting*, int> setting_indices_;   // into live_.settings; -1: an own one
  std::unordered_map<std::uint64_t, std::vector<Place>> slot_storages_;
  std::unordered_map<const Leaf*, int> before_indices_, slot_indices_;  // into before_ and program_.slots
  std::unordered_map<const std::string*, ModuleId> module_ids_;
  std::unordered_map<ValueId, bool> is_present_;            // of unit values
  std::unordered_map<ValueId, int> writers_;                // last node that wrote a value
  std::unordered_map<ValueId, ByteRanges> partly_written_;  // temporaries, first written in part
};

}  // namespace sherd
