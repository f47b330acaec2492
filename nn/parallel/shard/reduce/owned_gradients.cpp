#include "nn/parallel/shard/reduce/owned_gradients.h"

#include <utility>

#include "nn/parallel/shard/unit/unit_layout.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"

namespace sherd::nn {

OwnedGradients::OwnedGradients(const UnitLayout& owned) : shards_(layout_of_owned_gradients(owned)) {}

// Whether all are sums that replicas have not summed yet, in one buffer and in the types that are sent.
bool OwnedGradients::lie_together(std::span<const ReducedPiece> pieces, std::span<const Tensor> earlier) const {
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    if (pieces[m].add_to != AddTo::unsummed) return false;
    if (earlier[m].storage().get() != earlier[0].storage().get()) return false;
    if (earlier[m].dtype() != shards_->piece(pieces[m].piece).full_dtype) return false;
  }
  return true;
}

std::vector<OwnedGradients::Member> OwnedGradients::make_room(std::span<ReducedPiece> pieces,
                                                              std::span<const Tensor> earlier, Device device) const {
  const bool in_place = lie_together(pieces, earlier);
  std::vector<Member> members;
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    if (pieces[m].add_to == AddTo::gradient) pieces[m].add_to = AddTo::nothing;
    const UnitPiece& at = shards_->piece(pieces[m].piece);
    members.push_back({.piece = pieces[m].piece, .shard = in_place ? earlier[m] : Tensor()});
    offsets.push_back(std::exchange(bytes, bytes + align(numel(at.shape) * byte_size(at.full_dtype))));
  }
  if (in_place) return members;
  const Tensor memory = communication_buffer(bytes, device);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const UnitPiece& at = shards_->piece(pieces[m].piece);
    members[m].shard = view_at(memory, at.shape, offsets[m], at.full_dtype);
    if (pieces[m].add_to == AddTo::unsummed) copy_into(members[m].shard, cast(earlier[m], at.full_dtype));
  }
  return members;
}

void OwnedGradients::reduce(std::span<const Member> members, std::span<const Tensor> gradients, int in_flight) const {
  UnitReduceAttrs attrs{.unit = *shards_, .in_flight = in_flight, .over_replicas = true, .pieces = {}};
  for (const Member& m : members)
    attrs.pieces.push_back({.piece = m.piece,
                            .offset = m.shard.offset() * byte_size(m.shard.dtype()),
                            .kind = ReduceKind::sum,
                            .add_to = m.add_to});
  start_reduce(attrs, bytes_over(members.front().shard.storage()), gradients);
}

}  // namespace sherd::nn
