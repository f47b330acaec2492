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
  /// Takes over `parameters`: each is cut over `mesh` as DataMesh::place says. Values they have are kept, this rank's
  /// rows of them; on meta they stay on meta until materialize().
  ShardGroup(std::string name, const DeviceMesh& mesh, std::vector<Parameter*> parameters,
             const MixedPrecision& policy = {});
  ~ShardGroup();
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  std::int64_t gathered_bytes() const { return gathered_bytes_; }
  /// Gathered tensors are registered. The buffer may be there without: prefetched.
  bool is_unsharded() const { return unsharded_; }
  bool is_gathered() const { return !is_shard_full() && gathered_.defined() && gathered_.storage()->is_present(); }
  bool is_meta() const { return !shards_.defined(); }

  /// Bytes for the shards on `device`; no-op when they are there. Error for several ranks on devices other than the
  /// cpu.
  void materialize(Device device);
  /// Starts to gather, unless that has been done or what is there is current; registers nothing. Collective on the
  /// all-gather stream; does not wait.
  void prefetch();
  /// prefetch(), and registers what was gathered: plain tensors, or distributed ones over the axes of tensor
  /// parallelism. Whoever touches them waits for the gather.
  void unshard();
  /// Waits for the gather. Throws what failed in it.
  void wait();
  /// Registers the sharded tensors and frees the gathered buffer, also one that was prefetched and never used. Local.
  void reshard();
  /// Frees a gathered buffer that is not registered. Local.
  void drop_unused();
  /// Reduces what this backward pass has brought, if anything, and reshards. Collective.
  void finish_backward();
  /// Drops gradients of a pass that failed. Local.
  void discard_pending();
  /// Drops what earlier passes left to be added up over replicas. Local.
  void discard_unsummed();
  /// A step was left by an exception: back to the state between steps, without communication. Peers that wait for this
  /// rank raise CommError with `reason`; so does every further collective until reset_after_error().
  void abandon(std::string_view reason) noexcept;
  /// How many reductions may hold their input at a time; the next one waits.
  void set_max_reductions(int count) { max_reductions_ = static_cast<std::size_t>(count); }
  /// All ranks that are reset together with this group's.
  ProcessGroup& process_group() const { return data_.root_group(); }
  const DataMesh& data_mesh() const { return data_; }
  /// Divides the sum over ranks by `factor` instead of the number of ranks, replicas included.
  void set_divide_factor(double factor);
  /// Off: a backward pass reduces over the shard axis only, and its sum is kept until a pass with it on.
  void set_all_reduces(bool on);
  /// Gathers that a saved tensor had to ask for because no module hook came first.
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
  // Where one parameter lies in the buffers; bytes unless named otherwise.
  struct Placed {
    Parameter* parameter;
    ShardPlacement at;
    DType dtype, full_dtype;  // of the shard; of the gathered tensor and its gradient
    std::int64_t shard_offset, full_offset;
    Tensor sharded, unsharded;  // both with the slot's leaf
    // What this backward pass has brought: nothing; a full gradient to average or to sum; on one rank, an addition
    // to the gradient that was there.
    enum class Pending : std::uint8_t { none, average, sum, in_place } pending = Pending::none;
    // Its gradient is this rank's shard of passes that were not all-reduced over replicas: in a slot, so that what one
    // captured step leaves another finds. Null where there are no replicas.
    std::unique_ptr<Slot> aside{};
    // Where a tensor-parallel axis holds the whole parameter on every rank: what brings came may be terms of a sum over
    // it, which is taken of the shards, together with those of other groups.
    std::shared_ptr<PartialGradients> term_sum{};
    bool is_terms = false;  // what is pending
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
  // Without a cast an uncut shard is the parameter; on one rank, without rounding, the gradient is its own reduction.
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
  Tensor gathered_part(Placed& p, Tensor gradient);
  void sum_terms_now(Placed& p);
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
  bool casts_ = false, rounds_ = false;  // some parameter when gathered, some gradient when reduced
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
  Event last_reduction_;      // reads the tables of this object
  std::size_t finished_ = 0;  // parameters whose gradient is complete in this pass
  int late_gathers_ = 0;
  bool unsharded_ = false, all_reduces_ = true;
};

}  // namespace sherd::nn
