#pragma once
// One communication group of fully_shard: the parameters of one call. It owns three buffers laid out parameter by
// parameter, so that nothing is copied in or out of a collective:
//
//   shards     | p0 rows of this rank | p1 rows of this rank | ...     lives always; the optimizer's arena
//   gathered   | p0 ............ full | p1 ............ full | ...     present between unshard and release
//   gradients  | p0 ............ full | p1 ............ full | ...     during backward, written there by the vjps
//
// A gather puts every rank's rows at their final address, cast to the type the module computes in; a reduction reads
// `gradients` where backward wrote it, and casts back.
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/data_mesh.h"
#include "nn/parallel/mixed_precision.h"
#include "nn/parallel/partial_gradients.h"
#include "nn/parallel/shard_rows.h"
#include "runtime/op/capture_sink.h"

namespace sherd::nn {

class ShardGroup final : public ShardUnit, public GradSink, public StorageOwner {
 public:
  /// Takes over `parameters` and shards each over `mesh` by DataMesh::place. Of existing values this rank keeps its
  /// rows; parameters on meta stay there until materialize().
  ShardGroup(std::string name, const DeviceMesh& mesh, std::vector<Parameter*> parameters,
             const MixedPrecision& policy = {});
  ~ShardGroup();
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  std::int64_t gathered_bytes() const { return gathered_bytes_; }
  /// Whether the gathered tensors are registered. A prefetched buffer is gathered and not registered.
  bool is_unsharded() const { return unsharded_; }
  bool is_gathered() const { return !is_shard_full() && gathered_.defined() && gathered_.storage()->is_present(); }
  bool is_meta() const { return !shards_.defined(); }

  /// Allocates the shards on `device`; no-op when allocated. Error for several ranks on devices other than the cpu.
  void materialize(Device device);
  /// Starts a gather unless the gathered buffer is current or being gathered; registers nothing. Collective on the
  /// queue "gather"; does not wait.
  void prefetch();
  /// prefetch(), and registers the gathered tensors: plain, or distributed over the axes of tensor parallelism. Their
  /// first access waits for the gather.
  void unshard();
  /// Waits for the gather and throws its error.
  void wait();
  /// Registers the sharded tensors and frees the gathered buffer, even if it was prefetched and never used. Local.
  void reshard();
  /// Frees a gathered buffer that is not registered. Local.
  void drop_unused();
  /// Reshards, and reduces the pending gradients of this backward pass, if any. Collective.
  void finish_backward();
  /// Drops gradients of a pass that failed. Local.
  void discard_pending();
  /// Drops sums of earlier passes that are not all-reduced over replicas yet. Local.
  void discard_unsummed();
  /// After an exception in a step: returns to the state between steps, without communication. Peers that wait for this
  /// rank raise CommError with `reason`; so does every further collective until reset_after_error().
  void abandon(std::string_view reason) noexcept;
  /// How many reductions may hold their input at a time; the next one waits.
  void set_max_reductions(int count) { max_reductions_ = static_cast<std::size_t>(count); }
  /// All ranks that fail and are reset together with this group's.
  ProcessGroup& process_group() const { return data_.root_group(); }
  const DataMesh& data_mesh() const { return data_; }
  /// Divides the sum over ranks by `factor` instead of the number of ranks, replicas included.
  void set_divide_factor(double factor);
  /// Off: a backward pass reduces over the shard axis only, and its sum is kept until a pass with it on.
  void set_all_reduces(bool on);
  /// Gathers that started only when backward unpacked a saved tensor, because no module hook had run before.
  int late_gathers() const { return late_gathers_; }

  // StorageOwner
  void ensure_present(Storage& storage) override;
  void abandon_replay(Storage&, std::string_view reason) noexcept override { abandon(reason); }

  // GradSink
  Destination destination(Slot& slot) override;
  void wrote(Slot& slot) override;
  void accept(Slot& slot, Tensor gradient) override;
  void finish(Slot& slot) override;
  void abandon(Slot&, std::string_view reason) noexcept override { abandon(reason); }

  // ShardUnit
  const char* unit_name() const override { return name_.c_str(); }
  void gather() override;
  void release() override;
  void reduce(int plan, const Tensor& full, std::span<const Tensor> out) override;

 private:
  // One parameter in the buffers; offsets in bytes.
  struct Placed {
    Parameter* parameter;
    ShardPlacement at;
    DType dtype, full_dtype;  // of the shard; of the gathered tensor and its gradient
    std::int64_t shard_offset, full_offset;
    Tensor sharded, unsharded;  // both with the slot's leaf
    // Gradient of this backward pass: none; a full one to average or to sum; on one rank, added to grad() already.
    enum class Pending : std::uint8_t { none, average, sum, in_place } pending = Pending::none;
    // Its grad() is this rank's shard of the passes that were not all-reduced over replicas: a slot, so that one
    // captured step can leave it to another. Null where there are no replicas.
    std::unique_ptr<Slot> aside{};
    // Set where the parameter is replicated over a tensor-parallel axis: its gradient may be Partial over that axis. It
    // is reduced over the data axes first, and its shard over that axis, together with those of other groups.
    std::shared_ptr<PartialGradients> partial_gradients{};
    bool is_partial = false;  // the pending gradient, over the tensor-parallel axis
    Tensor unsummed() const { return aside ? aside->grad() : Tensor(); }
    bool has_unsummed() const { return aside && aside->grad().defined(); }
  };
  struct ReducePlan {
    double scale;
    bool all_reduces;  // over replicas, if there are any
    std::vector<std::size_t> members;
    std::vector<bool> accumulate, unsummed;
    friend bool operator==(const ReducePlan&, const ReducePlan&) = default;
  };

  bool alone() const { return data_.num_ranks() == 1; }
  bool gathers_alone() const { return data_.num_shards() == 1; }
  // On one shard without casts, shards and gathered parameters are one buffer; on one rank, without rounding or scaling
  // too, the full gradients are the reduced ones.
  bool is_shard_full() const { return gathers_alone() && !casts_; }
  bool is_gradient_reduced() const { return alone() && is_shard_full() && !rounds_ && divide_factor_ == 1; }
  std::optional<DType> wire_of(const Placed& p) const;
  bool is_current() const;
  bool needs_gather() const;
  Placed& placed(const Slot& slot);
  Tensor full_view(const Placed& p, const Tensor& buffer) const;
  Tensor as_gathered(const Placed& p, const Tensor& local) const;
  void present_shards();
  void gather_shards();
  void gather_shards_alone();
  void reduce_shards_alone(const ReducePlan& plan, const Tensor& full, std::span<const Tensor> out) const;
  void attach_tensors();
  void take_values(const std::vector<Tensor>& values);
  bool adds_in_place(const Placed& p) const;
  Destination local_destination(const Placed& p);
  Tensor local_gradient(Placed& p, Tensor gradient);
  void reduce_partial_now(Placed& p);
  void note(Placed& p, Placed::Pending kind);
  void reduce_pending();
  void keep_gradients();
  void launch(Placed::Pending kind, double scale);
  bool leaves_unsummed() const { return !all_reduces_ && data_.num_replicas() > 1; }
  void add_zeros_to_unsummed();
  Tensor earlier_sum(const Placed& p) const;
  void deliver(Placed& p, const Tensor& shard);
  int plan_index(const ReducePlan& plan);
  void reduction_changed();

  std::string name_;
  DataMesh data_;
  MixedPrecision policy_;
  bool casts_ = false, rounds_ = false;  // a gather casts some parameter, a reduction rounds some gradient
  std::vector<Parameter*> parameters_;
  std::vector<NodeRef> leaves_;  // of parameters_
  std::vector<Placed> placed_;
  std::int64_t shard_bytes_ = 0, gathered_bytes_ = 0;
  Tensor shards_, gathered_;  // u8 [bytes]
  Tensor gradients_;          // u8 [gathered bytes], or undefined
  std::vector<ReducePlan> plans_;
  double divide_factor_;
  const std::shared_ptr<StepSetting> reduction_ = std::make_shared<StepSetting>();  // the factor and all_reduces_
  std::size_t max_reductions_ = 1;
  Event last_reduction_;      // its work reads the tables of this object
  std::size_t finished_ = 0;  // parameters whose gradient is complete in this pass
  int late_gathers_ = 0;
  bool unsharded_ = false, all_reduces_ = true;
};

}  // namespace sherd::nn
