#include "nn/checkpoint/full/replicas.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include <fmt/ranges.h>

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

// A line for each box: its hash, and what it is of.
std::string hashes(const std::vector<nn::StateEntry>& state, std::string_view other) {
  std::string text = fmt::format("{} {}\n", checksum_text(checksum(other)), "the position in the data");
  for (const nn::StateEntry& entry : state) {
    const Tensor& value = state_tensor(entry);
    if (!has_replicas(value)) continue;
    for (const LocalPart& part : local_parts(value, state_shape(entry)))
      text += fmt::format("{} {} \"{}\" {}\n", checksum_text(hash_of(part.values)), entry.kind, entry.name,
                          to_string(part.box));
    leave_memory(value);
  }
  return text;
}

using Holders = std::map<std::string, std::vector<int>>;  // ranks by the hash that they have

std::map<std::string, Holders> by_box(const std::vector<std::string>& texts) {
  std::map<std::string, Holders> boxes;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    for (std::string hash, what; lines >> hash && std::getline(lines, what);)
      boxes[what.substr(1)][hash].push_back(static_cast<int>(rank));
  }
  return boxes;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string describe_difference(const std::string& what, const Holders& holders) {
  const auto most =
      std::ranges::max_element(holders, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<int> others;
  bool is_clear = true;
  for (auto at = holders.begin(); at != holders.end(); ++at) {
    if (at == most) continue;
    is_clear = is_clear && at->second.size() < most->second.size();
    others.insert(others.end(), at->second.begin(), at->second.end());
  }
  std::ranges::sort(others);
  return fmt::format("replicas differ: {} of {} {} other bits than {}{}", what, ranks_text(others),
                     others.size() == 1 ? "has" : "have", ranks_text(most->second),
                     is_clear ? "" : "; as many are of either kind, so either may be wrong");
}

}  // namespace

void check_replicas(const std::vector<nn::StateEntry>& state, std::string_view other, ProcessGroup& group) {
  const PurposeScope purpose("check_replicas");
  if (group.size() == 1 || RankContext::current().is_ghost()) return;
  const GradMode off(false);
  std::string own;
  together(group, [&] { own = hashes(state, other); });
  for (const auto& [what, holders] : by_box(gather_text(group, own)))
    if (holders.size() > 1)
      fail(
          "{}. A bit has flipped in memory or on the way, or an op gives other bits on that machine; go on from the "
          "last save without it",
          describe_difference(what, holders));
}

}  // namespace sherd::ckpt
