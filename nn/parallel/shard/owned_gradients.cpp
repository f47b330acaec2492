#include "nn/parallel/shard/owned_gradients.h"

#include <algorithm>

#include "nn/parallel/shard/unit_layout.h"
#include "runtime/op/buffer_views.h"

namespace sherd::nn {

OwnedGradients::OwnedGradients(const UnitLayout& owned)
    : sums_(layout_of_owned_sums(owned)), apart_(layout_of_owned_gradients(owned)) {}

std::vector<OwnedGradients::Member> OwnedGradients::make_room(std::span<ReducedPiece> pieces,
                                                              std::span<const Tensor> earlier, Device device) const {
  std::vector<Member> members;
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
  bool any_apart = false;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const bool is_apart = pieces[m].add_to != AddTo::unsummed;
    members.push_back({.piece = pieces[m].piece, .shard = is_apart ? Tensor() : earlier[m], .is_apart = is_apart});
    offsets.push_back(bytes);
    if (!is_apart) continue;
    any_apart = true;
    pieces[m].add_to = AddTo::nothing;
    const UnitPiece& at = apart_->piece(pieces[m].piece);
    bytes += align(numel(at.shape) * byte_size(at.wire));
  }
  if (!any_apart) return members;
  const Tensor memory = communication_buffer(bytes, device);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const UnitPiece& at = apart_->piece(pieces[m].piece);
    if (members[m].is_apart) members[m].shard = view_at(memory, at.shape, offsets[m], at.wire);
  }
  return members;
}

// A row reads one buffer: what lies in others takes a row each.
void OwnedGradients::reduce(std::span<const Member> members, std::span<const Tensor> gradients, int in_flight) const {
  std::vector<const Storage*> reduced;
  for (const Member& first : members) {
    const Ref<Storage>& storage = first.shard.storage();
    if (std::ranges::find(reduced, storage.get()) != reduced.end()) continue;
    reduced.push_back(storage.get());
    UnitReduceAttrs attrs{
        .unit = first.is_apart ? apart_ : sums_, .in_flight = in_flight, .over_replicas = true, .pieces = {}};
    std::vector<Tensor> out;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const Tensor& shard = members[m].shard;
      if (shard.storage().get() != storage.get()) continue;
      attrs.pieces.push_back({.piece = members[m].piece,
                              .offset = shard.offset() * byte_size(shard.dtype()),
                              .kind = ReduceKind::sum,
                              .add_to = members[m].add_to});
      out.push_back(gradients[m]);
    }
    start_reduce(attrs, bytes_over(storage), out);
  }
}

}  // namespace sherd::nn
