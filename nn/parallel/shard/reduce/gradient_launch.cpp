// The launch of a reduction: which rows, with which pieces, from where to where.
#include <algorithm>
#include <utility>
#include <vector>

#include "nn/parallel/shard/reduce/gradient_inbox.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

/// One reduction: what its rows are called with.
struct GradientInbox::Launch {
  std::vector<std::size_t> members{};  // pieces
  UnitReduceAttrs reduce{};
  std::vector<Tensor> gradients{};  // of the members: where their shards end
  std::vector<Tensor> out{};        // of the members: where the reduction over shards puts them
  ReplicaSumAttrs sum{};
  std::vector<Tensor> apart{};  // of the members that are summed over replicas apart: their gradients
};

GradientInbox::Launch GradientInbox::members_to_launch() const {
  const UnitLayout& layout = *unit_of_gradients_;
  Launch launch{.reduce = {.unit = layout, .scale = 1 / knobs().divide_factor, .in_flight = knobs().max_reductions},
                .sum = {.unit = layout}};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (!e.waits()) continue;
    launch.members.push_back(i);
    const Tensor& earlier = launch.gradients.emplace_back(earlier_sum(i));
    const AddTo add_to = !earlier.defined()                      ? AddTo::nothing
                         : e.has_unsummed() || leaves_unsummed() ? AddTo::unsummed
                                                                 : AddTo::gradient;
    launch.reduce.pieces.push_back({.piece = static_cast<int>(i),
                                    .offset = e.offset,
                                    .kind = e.pending == Pending::sum ? ReduceKind::sum : ReduceKind::avg,
                                    .add_to = add_to});
  }
  return launch;
}

// Of what this rank owns, or of its shards, for gradients that are new. A rank of which they are empty issues the row
// too, with empty tensors: all ranks issue the same rows.
void GradientInbox::make_room(const std::vector<std::size_t>& members, std::vector<Tensor>& gradients,
                              bool is_owned) const {
  const auto shape_of = [&](std::size_t i) -> const Shape& {
    return is_owned ? buffers_.placement(i).local_shape : buffers_.shard_shape(i);
  };
  const auto bytes_of = [&](std::size_t i) {
    return align(sherd::numel(shape_of(i)) * byte_size(piece(i).gradient_dtype()));
  };
  std::int64_t bytes = 0;
  bool any_fresh = false;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (gradients[m].defined()) continue;
    any_fresh = true;
    bytes += bytes_of(members[m]);
  }
  if (!any_fresh) return;
  const Tensor fresh = gradient_buffer(bytes, buffers_.device());
  std::int64_t offset = 0;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (gradients[m].defined()) continue;
    gradients[m] = view_at(fresh, shape_of(members[m]), offset, piece(members[m]).gradient_dtype());
    offset += bytes_of(members[m]);
  }
}

// Gradients that are summed over replicas already take no unsummed part; and those of another type than the wire's must
// be sent in the wire's, whatever this replica has used in which pass: replicas make one call. Both are reduced and
// summed in memory of their own, and stored after.
void GradientInbox::sum_apart(Launch& launch) const {
  const UnitLayout& layout = buffers_.layout();
  launch.out.resize(launch.members.size());
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
  for (const ReducedPiece& p : launch.reduce.pieces) {
    const UnitPiece& at = layout.piece(p.piece);
    const bool is_apart = p.add_to == AddTo::gradient || at.wire != at.gradient_dtype();
    launch.sum.pieces.push_back({.piece = p.piece, .is_apart = is_apart});
    offsets.push_back(bytes);
    if (is_apart) bytes += align(layout.count_here(at) * byte_size(at.wire));
  }
  if (std::ranges::none_of(launch.sum.pieces, &SummedPiece::is_apart)) return;
  const Tensor memory = communication_buffer(bytes, buffers_.device());
  for (std::size_t m = 0; m < launch.members.size(); ++m) {
    if (!launch.sum.pieces[m].is_apart) continue;
    const UnitPiece& at = piece(launch.members[m]);
    AddTo& add_to = launch.reduce.pieces[m].add_to;
    launch.out[m] = run_at(memory, layout.count_here(at), offsets[m], at.wire);
    if (add_to == AddTo::unsummed) {
      copy_into(launch.out[m], cast(flat(launch.gradients[m]), at.wire));
      launch.gradients[m] = gradient_to_add_to(launch.members[m]);
    } else add_to = AddTo::nothing;
    launch.sum.pieces[m].add_to = launch.gradients[m].defined() ? AddTo::gradient : AddTo::nothing;
  }
}

void GradientInbox::reduce(const Launch& launch) const {
  if (reduce_ && buffers_.layout().shards > 1) reduce_(launch.reduce, gradients_, launch.out);
  else start_reduce(launch.reduce, gradients_, launch.out);
}

// To the whole of this rank's shard, apart or onto what replicas have not summed; then to what this rank owns of it.
void GradientInbox::launch_owned(Launch& launch) const {
  std::vector<OwnedGradients::Member> members =
      owned_->make_room(launch.reduce.pieces, launch.gradients, buffers_.device());
  for (std::size_t m = 0; m < members.size(); ++m) {
    const std::size_t i = launch.members[m];
    launch.out.push_back(members[m].shard);
    launch.gradients[m] = gradient_to_add_to(i);
    if (launch.gradients[m].defined()) members[m].add_to = AddTo::gradient;
  }
  reduce(launch);
  make_room(launch.members, launch.gradients, /*is_owned=*/true);
  owned_->reduce(members, launch.gradients, knobs().max_reductions);
}

void GradientInbox::launch_shards(Launch& launch, bool sums_replicas) const {
  if (sums_replicas) sum_apart(launch);
  make_room(launch.members, launch.gradients, /*is_owned=*/false);
  if (!sums_replicas) launch.out = launch.gradients;
  for (std::size_t m = 0; sums_replicas && m < launch.members.size(); ++m) {
    if (launch.sum.pieces[m].is_apart) launch.apart.push_back(launch.gradients[m]);
    else launch.out[m] = launch.gradients[m];
  }
  if (!launch.apart.empty()) launch.sum.in_flight = knobs().max_reductions;  // they hold memory of their own
  reduce(launch);
  if (sums_replicas) start_replica_sum(launch.sum, launch.out, launch.apart);
}

// Brings the sums that this pass adds to. Stay in memory: what may be terms of another axis, what is not summed over
// replicas yet, and a gradient that is there already, as one that somebody has set.
void GradientInbox::fetch_earlier() {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (!e.waits() || e.partial_gradients || leaves_unsummed()) continue;
    const Tensor& gradient = buffers_.parameter(i)->grad();
    e.goes_home = !gradient.defined() || home_->is_home(gradient.local());
    if (e.goes_home && gradient.defined()) members.push_back(i);
  }
  const std::vector<Tensor> here = home_->fetch(members);
  for (std::size_t m = 0; m < members.size(); ++m) entries_[members[m]].earlier = here[m];
}

void GradientInbox::send_home(const Launch& launch) {
  std::vector<std::size_t> members;
  std::vector<Tensor> here;
  for (std::size_t m = 0; m < launch.members.size(); ++m) {
    Entry& e = entries_[launch.members[m]];
    e.earlier = Tensor();
    if (!std::exchange(e.goes_home, false)) continue;
    members.push_back(launch.members[m]);
    here.push_back(launch.gradients[m]);
  }
  home_->evict(members, here);
}

void GradientInbox::launch() {
  if (home_) fetch_earlier();
  Launch launch = members_to_launch();
  if (launch.members.empty()) return;
  end_->agree();
  const bool sums_replicas = data_.num_replicas() > 1 && !leaves_unsummed();
  if (sums_replicas && owned_) launch_owned(launch);
  else launch_shards(launch, sums_replicas);
  if (hook_ && !leaves_unsummed()) hook_({*launch.reduce.unit, launch.reduce.pieces, launch.gradients});
  for (std::size_t m = 0; m < launch.members.size(); ++m) deliver(launch.members[m], launch.gradients[m]);
  if (home_) send_home(launch);
}

}  // namespace sherd::nn
