// A rank that has no peers has nothing to wait for and nothing to move. What it is asked for outside of the queues,
// whose work does not run on a ghost rank, are agreements: texts and numbers that ranks show each other.
#include "runtime/comm/group/ghost_group.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <typeinfo>
#include <utility>

#include "runtime/comm/group/division.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/link.h"
#include "runtime/exec/host_layout.h"
#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

/// Why the group and all divided from it failed.
class Poison {
 public:
  /// The first reason stays.
  void set(std::string reason) {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = std::move(reason);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    reason_.clear();
  }
  void check() const {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw CommError(reason_);
  }

 private:
  mutable std::mutex mutex_;
  std::string reason_;
};

// Between devices a library adds on the way, so that terms travel in the type of their sum. Host groups add what has
// arrived, in the narrower type.
std::int64_t bytes_of_sums(const Collective& call) {
  if (call.op != comm::CommOp::reduce_scatter) return call.bytes();
  std::int64_t bytes = 0;
  for (const CollectivePart& part : call.parts)
    for (const std::int64_t count : part.counts) bytes += count * byte_size(part.wire_type());
  return bytes;
}

class GhostGroup final : public HostGroup {
 public:
  GhostGroup(int rank, std::vector<int> ranks, int root_rank, comm::Division division, std::string name,
             std::shared_ptr<Poison> poison)
      : HostGroup({rank, static_cast<int>(ranks.size()), "ghost", std::move(name), kAllAbilities, grid_of(ranks)}),
        root_rank_(root_rank),
        ranks_(std::move(ranks)),
        division_(std::move(division)),
        poison_(std::move(poison)) {}

  bool supports(Device) const override { return true; }  // nothing moves, wherever it is
  void issue(Collective call, const CollectiveSite& site) override {
    comm::check_issue(*this, call, site);
    QueueWork work = comm::work_of(lane(site.queue.name()), call, site);
    if (site.queue.device() != Device::cpu()) work.bytes = bytes_of_sums(call);
    site.queue.submit(std::move(work));
  }
  HostGroup& lane(std::string_view queue) override {
    lane_numbers_.of(queue);
    return *this;
  }
  HostGroup& lane(int index) override {
    check_fits_rank(*this);
    check(index >= 0 && index < kNumLanes, "lane {} of a process group; give 0..{}", index, kNumLanes - 1);
    return *this;
  }

  void run(const Collective& call) override;
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override;

  void abort(std::string_view reason) override {
    poison_->set(fmt::format("rank {} aborted the group: {}", root_rank_, reason));
  }
  void reset() override { poison_->clear(); }
  void set_deadline(std::chrono::nanoseconds) override {}
  CommCounts counts() const override { return {}; }
  void shape_link(const LinkShape& shape) override { const comm::Link checked(shape, size()); }
  SharedHeap shared_heap() const override { return {}; }

 private:
  // Null for ranks that are no grid: only prices ask, and say so.
  static std::shared_ptr<const RankGrid> grid_of(std::vector<int> ranks) {
    std::ranges::sort(ranks);
    try {
      return std::make_shared<RankGrid>(RankGrid::of(ranks));
    } catch (const Error&) { return {}; }
  }
  void gather(const CollectivePart& part) const;
  static void keep(const CollectivePart& part);
  void check_keeps_value(const ReduceOptions& reduction) const;
  /// At the end of a call too: the reason why the group failed, if it did.
  void check_usable() const {
    check_fits_rank(*this);
    poison_->check();
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail("{} over the ghost group {} of {}: it needs what other ranks have, and there are none", what, name(), size());
  }

  const int root_rank_;  // in the group that the family began with, whose numbers are those of ranks_
  const std::vector<int> ranks_;
  comm::Division division_;
  const std::shared_ptr<Poison> poison_;
  comm::LaneNumbers lane_numbers_;
};

/// What a rank knows of its peers: values that are equal on all.
void GhostGroup::run(const Collective& call) {
  switch (call.op) {
    case comm::CommOp::all_gather:
      for (const CollectivePart& part : call.parts) gather(part);
      break;
    case comm::CommOp::all_reduce:
      check_keeps_value(call.reduction);
      for (const CollectivePart& part : call.parts) keep(part);
      break;
    case comm::CommOp::broadcast:
      check(call.peer >= 0 && call.peer < size(), "broadcast from rank {} of a group of {}", call.peer, size());
      for (const CollectivePart& part : call.parts) keep(part);
      break;
    case comm::CommOp::barrier: break;
    default: refuse(comm::name(call.op));
  }
  check_usable();
}

void GhostGroup::gather(const CollectivePart& part) const {
  check(static_cast<int>(part.counts.size()) == size(), "all_gather of {} parts over {} ranks", part.counts.size(),
        size());
  const std::int64_t count = part.counts[0];
  if (std::ranges::any_of(part.counts, [&](std::int64_t c) { return c != count; }))
    refuse("all_gather of unequal parts");
  if (part.dtype != part.out_type()) refuse("all_gather that casts");
  const auto blocks = static_cast<std::size_t>(part.blocks), ranks = part.counts.size();
  const auto bytes = static_cast<std::size_t>(count * byte_size(part.dtype)) / blocks;  // of a rank, in one block
  auto* const all = static_cast<std::byte*>(part.out.address);
  const auto* const own = part.is_in_place(rank()) ? all + static_cast<std::size_t>(rank()) * bytes
                                                   : static_cast<const std::byte*>(part.in.address);
  for (std::size_t i = 0; bytes > 0 && i < blocks * ranks; ++i)
    if (all + i * bytes != own) std::memcpy(all + i * bytes, own + i / ranks * bytes, bytes);
}

/// The own value, where the result is to lie.
void GhostGroup::keep(const CollectivePart& part) {
  const auto bytes = static_cast<std::size_t>(part.counts.empty() ? 0 : part.counts[0] * byte_size(part.dtype));
  if (bytes > 0 && part.in.address && part.in.address != part.out.address)
    std::memcpy(part.out.address, part.in.address, bytes);
}

void GhostGroup::check_keeps_value(const ReduceOptions& reduction) const {
  const bool keeps_value = reduction.kind != ReduceKind::sum && reduction.kind != ReduceKind::product;
  if (!keeps_value || reduction.scale != 1) refuse(fmt::format("all_reduce by {}", sherd::name(reduction.kind)));
}

std::shared_ptr<ProcessGroup> GhostGroup::subgroup(std::span<const int> ranks, std::string_view label) {
  check_usable();
  comm::check_ranks(ranks, rank(), size());
  const auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  comm::Division division = division_.divide();
  std::string name = division.name(label);
  std::vector<int> of_root;
  of_root.reserve(ranks.size());
  for (const int r : ranks) of_root.push_back(ranks_[static_cast<std::size_t>(r)]);
  return std::make_shared<GhostGroup>(place, std::move(of_root), root_rank_, std::move(division), std::move(name),
                                      poison_);
}

}  // namespace

void check_fits_rank(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const RankMemory* const rank = RankMemory::current_or_null();
  const bool is_ghost_group = typeid(group) == typeid(GhostGroup);
  if (!rank || rank->is_ghost() == is_ghost_group) return;
  if (is_ghost_group)
    fail(
        "the group {} of {} is a ghost's, and this rank is none: its peers would not exist; ranks that compute meet "
        "in world_group(), or open RankScope(text, {{.ghost = true}}) for a ghost",
        group.name(), group.size());
  fail(
      "the {} group {} of {} has ranks that compute, and this rank is a ghost: they would wait for it; give it a "
      "group by make_ghost_group()",
      group.kind(), group.name(), group.size());
}

std::shared_ptr<ProcessGroup> make_ghost_group(int rank, int size, std::string name) {
  check(size >= 1 && rank >= 0 && rank < size, "rank {} of a ghost group of {} ranks", rank, size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<GhostGroup>(rank, std::move(ranks), rank, comm::Division{}, std::move(name),
                                      std::make_shared<Poison>());
}

}  // namespace sherd
