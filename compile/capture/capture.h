#pragma once
// Records one eager run of a step as a Graph. The recorder knows values by storage ids, which are never used twice,
// and keeps no tensor of the step alive: memory, donation and results are those of a run without it.
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/capture/argument_places.h"
#include "compile/capture/recorded_names.h"
#include "compile/capture/slots_before.h"
#include "compile/ir/analysis/byte_ranges.h"
#include "compile/ir/graph.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// While it lives, all op calls of this thread are recorded. Reading a tensor's values, a hook that is not marked
/// capturable, or a step on the meta device raise Error from where they happen.
class Recorder final : public CaptureSink, NoCopy {
 public:
  /// Arguments must carry no autograd history. `others`: leaves of slots that another thread has made and the step may
  /// use, as met() of an earlier recording says. Error inside another recording.
  explicit Recorder(std::span<const Tensor> arguments, std::span<const NodeRef> others = {});
  ~Recorder();

  /// Ends the recording. The step returns `results`, which may be undefined, views, arguments or slots' tensors.
  ir::Graph finish(std::span<const Tensor> results);

  void prepare(const Op& op, std::span<const Tensor> in) override;
  void record(const Op& op, AttrsView attrs, std::span<const Tensor> in, std::span<const Tensor> out,
              bool accumulate) override;
  bool has_seen(const Storage& storage) const override { return by_storage_.contains(storage.id()); }
  void slot_assigned(Slot& slot) override;
  void value_used(const Slot& slot) override { before_.meet(slot); }
  void grad_used(const Slot& slot) override;
  /// Leaves of slots that the step has used and another thread has made, beside those that it was told of: the
  /// recording took their tensors for constants, and is void.
  const std::vector<NodeRef>& met() const { return before_.met(); }
  void setting_read(const std::shared_ptr<const StepSetting>& setting) override { names_.setting_read(setting); }
  void setting_changed(const std::shared_ptr<const StepSetting>& setting) override { names_.setting_changed(setting); }
  void refuse_read(const Tensor& tensor, std::string_view what) override;

 private:
  void add_argument(const Tensor& argument);
  ir::ValueId add_value(ir::ValueKind kind, const Tensor& tensor);
  void check_one_origin(const Tensor& tensor) const;
  /// The value that holds `tensor`'s bytes; added if it is external and new.
  ir::ValueId value_of(const Tensor& tensor);
  ir::ValueId add_external(const Tensor& tensor);
  ir::ValueId add_unit(const Tensor& tensor);
  /// kNoValue if the slots of this storage are gone.
  ir::ValueId add_slot_value(const Tensor& tensor, std::span<const SlotsBefore::Place> places);
  ir::TensorRef ref_to(const Tensor& tensor);
  ir::TensorRef write_to(const Op& op, const Tensor& tensor, bool accumulate);
  ir::TensorRef read_from(const Tensor& tensor, std::string_view reader);
  void check_writable(const Op& op, ir::ValueId id) const;
  void note_residency(ir::GraphNode& node);
  void update(int slot, bool gradient, const Tensor& tensor);
  ir::GraphResult result_of(const Tensor& tensor);
  void finish_gradient(Slot& slot);
  void note_requires_grad();
  void note_sole_gradients();
  std::string origin(const Tensor& tensor) const;

  RankContext& context_;
  const std::uint64_t start_id_;  // storages of this rank with a larger id were made by the step
  ir::Program program_;
  ir::Live live_;
  SlotsBefore before_;
  RecordedNames names_;
  ArgumentPlaces arguments_;
  std::unordered_map<std::uint64_t, ir::ValueId> by_storage_;
  std::unordered_map<ir::ValueId, bool> is_present_;                // of unit values
  std::unordered_map<ir::ValueId, int> writers_;                    // last node that wrote a value
  std::unordered_map<ir::ValueId, ir::ByteRanges> partly_written_;  // temporaries, first written in part
};

}  // namespace sherd
