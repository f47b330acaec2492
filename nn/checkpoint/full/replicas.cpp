#include "nn/checkpoint/full/replicas.h"

#include <fmt/format.h>

#include "nn/checkpoint/format/checksum.h"
#include "nn/checkpoint/local_box.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"

namespace sherd::ckpt {

namespace {

// Whether other ranks hold the box as well; a plain tensor lies on all.
bool has_replicas(const Tensor& value) { return !value.is_distributed() || !replica_axes(value).empty(); }

std::uint64_t hash_of(const Tensor& values) {
  const Tensor here = to(contiguous(values), Device::cpu());
  return checksum({static_cast<const std::byte*>(here.raw()), static_cast<std::size_t>(here.bytes())});
}

// A fact for each box that others may hold.
Facts checksums(const std::vector<nn::StateEntry>& state, std::string_view other) {
  Facts facts{{"the position in the data", std::string(other)}};
  for (const nn::StateEntry& entry : state) {
    const Tensor& value = state_tensor(entry);
    if (!has_replicas(value)) continue;
    for (const LocalPart& part : local_parts(value, state_shape(entry)))
      facts.emplace_back(fmt::format("the checksum of {} \"{}\" {}", entry.kind, entry.name, to_string(part.box)),
                         checksum_text(hash_of(part.values)));
    leave_memory(value);
  }
  return facts;
}

}  // namespace

void check_replicas(const std::vector<nn::StateEntry>& state, std::string_view other, ProcessGroup& group) {
  const PurposeScope purpose("check_replicas");
  if (group.size() == 1 || RankContext::current().is_ghost()) return;
  const GradMode off(false);
  Facts own;
  together(group, [&] { own = checksums(state, other); });
  agree(
      group, own,
      {.what = "replicas differ",
       .remedy = "a bit has flipped in memory or on the way, or an op gives other bits on a machine: where most agree "
                 "the others are wrong, else either may be. Go on from the last save without those",
       .is_among_holders = true});
}

}  // namespace sherd::ckpt
