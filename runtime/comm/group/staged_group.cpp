#include "runtime/comm/group/staged_group.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/staging_pool.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/exec/host_queue.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using comm::CommOp;

struct Copy {
  void* to;
  const void* from;
  std::int64_t bytes;
};

/// A collective of device memory, on host memory.
struct Staged {
  Collective call;
  std::vector<Copy> before, after;  // to the host, to the device
};

bool is_inside(const void* p, const Buffer& buffer) {
  const auto* const first = static_cast<const std::byte*>(buffer.address);
  return p >= first && p < first + buffer.bytes;
}

std::int64_t apart(const void* p, const void* from) {
  return static_cast<const std::byte*>(p) - static_cast<const std::byte*>(from);
}

/// Where the parts' buffers are in the staging memory.
struct Layout {
  struct Place {
    std::int64_t in = 0, out = 0;
  };
  std::vector<Place> places;
  std::int64_t bytes = 0;
};

/// What shares memory on the device does so on the host, but for all_to_all, whose buffers must not overlap.
Layout layout_of(const Collective& call, int rank) {
  constexpr std::int64_t kAlign = 64;
  Layout layout;
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t at = layout.bytes;
    layout.bytes += (bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  for (const CollectivePart& part : call.parts) {
    const CollectiveExtent extent = extent_of(call, part, rank);
    const Buffer in{part.in.address, extent.in, {}}, out{part.out.address, extent.out, {}};
    const bool may_share = call.op != CommOp::all_to_all && in.bytes > 0 && out.bytes > 0;
    Layout::Place at;
    if (may_share && is_inside(in.address, out)) {
      at.out = place(out.bytes);
      at.in = at.out + apart(in.address, out.address);
    } else if (may_share && is_inside(out.address, in)) {
      at.in = place(in.bytes);
      at.out = at.in + apart(out.address, in.address);
    } else {
      at.in = place(in.bytes);
      at.out = place(out.bytes);
    }
    layout.places.push_back(at);
  }
  return layout;
}

Staged stage(const Collective& call, int rank, const Layout& layout, std::byte* memory) {
  Staged staged{call, {}, {}};
  for (const std::size_t i : indices(call.parts)) {
    CollectivePart& part = staged.call.parts[i];
    const CollectiveExtent extent = extent_of(call, part, rank);
    std::byte *const in = memory + layout.places[i].in, *const out = memory + layout.places[i].out;
    if (extent.in > 0) staged.before.push_back({in, part.in.address, extent.in});
    if (part.accumulate && extent.out > 0) staged.before.push_back({out, part.out.address, extent.out});
    if (extent.out > 0) staged.after.push_back({part.out.address, out, extent.out});
    part.in = {in, extent.in, {}};
    part.out = {out, extent.out, {}};
  }
  return staged;
}

GroupFacts facts_over(const ProcessGroup& host) {
  Abilities abilities = host.abilities();
  abilities.windows = false;
  return {host.rank(), host.size(), "staged", host.name(), abilities};
}

class StagedGroup final : public ProcessGroup {
 public:
  StagedGroup(std::shared_ptr<ProcessGroup> host, std::shared_ptr<comm::StagingPool> pool)
      : ProcessGroup(facts_over(*host)), host_(std::move(host)), pool_(std::move(pool)) {}

  bool supports(Device device) const override { return device.has_backend() || host_->supports(device); }
  void issue(Collective call, const CollectiveSite& site) override;
  HostGroup& host() override { return host_->host(); }
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override {
    return std::make_shared<StagedGroup>(host_->subgroup(ranks, label), pool_);
  }

  void abort(std::string_view reason) override { host_->abort(reason); }
  void reset() override { host_->reset(); }
  void set_deadline(std::chrono::nanoseconds deadline) override { host_->set_deadline(deadline); }

 private:
  const std::shared_ptr<ProcessGroup> host_;
  const std::shared_ptr<comm::StagingPool> pool_;  // of all subgroups
};

void StagedGroup::issue(Collective call, const CollectiveSite& site) {
  const Device device = check_buffers(call, rank(), size(), site.queue.device());
  RankContext& context = RankContext::current();
  if (device.kind == Device::Kind::cpu || context.is_ghost()) return host_->issue(std::move(call), site);
  check(site.queue.device() == device, "{} of buffers on {} on the queue {} of {}; give a queue of their device",
        comm::name(call.op), to_string(device), site.queue.name(), to_string(site.queue.device()));
  auto& queue = static_cast<DeviceQueue&>(site.queue);
  Queue& host_queue = context.queue(queue.name());
  HostGroup& lane = host_->host().lane(queue.name());

  const Layout layout = layout_of(call, rank());
  // Each of the three items keeps it: an error between them leaves those before running.
  std::shared_ptr<std::byte> memory = pool_->take(queue.context(), layout.bytes);
  Staged staged = stage(call, rank(), layout, memory.get());
  const std::int64_t bytes = call.bytes();

  // Two items of the queue for one collective.
  const std::size_t limit = std::min(site.max_in_flight, QueueWork::kUnlimited / 2) * 2;
  const auto shared = std::make_shared<SharedWork>();
  const Event copied = queue.submit({.name = site.name,
                                     .subject = site.subject,
                                     .bytes = bytes,
                                     .run =
                                         [&queue, memory, copies = std::move(staged.before)] {
                                           for (const Copy& c : copies) queue.stream().to_host(c.to, c.from, c.bytes);
                                         },
                                     .loans = site.loans,
                                     .max_in_flight = limit},
                                    {.shared = shared, .calls = 0});
  host_queue.wait(copied);
  const Event moved =
      host_queue.submit({.name = site.name,
                         .subject = site.subject,
                         .bytes = bytes,
                         .run =
                             [&lane, memory, shared, call = std::move(staged.call), subject = std::string(site.subject),
                              part = std::string(site.part)]() mutable {
                               const comm::SubjectScope scope(subject, part);
                               lane.run(call);
                               const std::vector<Skew> skews = skews_here();
                               shared->set_skew(skews.empty() ? Skew{} : skews.back());
                               memory.reset();  // the item itself stays until it is waited for
                             },
                         .abort = [&lane](std::string_view reason) { lane.abort(reason); }});
  queue.wait(moved);
  const Event ended = queue.submit({.name = site.name,
                                    .subject = site.subject,
                                    .bytes = bytes,
                                    .run =
                                        [&queue, memory, copies = std::move(staged.after)] {
                                          for (const Copy& c : copies) queue.stream().to_device(c.to, c.from, c.bytes);
                                        },
                                    .loans = site.loans},
                                   {.shared = shared, .calls = 0});
  pool_->start(memory, moved, ended);
}

}  // namespace

std::shared_ptr<ProcessGroup> make_staged_group(std::shared_ptr<ProcessGroup> host, StagedOptions options) {
  check(options.max_bytes > 0, "a staged group with at most {} bytes of staging memory; give more than none",
        options.max_bytes);
  return std::make_shared<StagedGroup>(std::move(host), std::make_shared<comm::StagingPool>(options.max_bytes));
}

}  // namespace sherd
