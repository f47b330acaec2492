#include "runtime/comm/group/composed_group.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/group/composed_plan.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/device_queue.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

GroupFacts facts_over(const comm::BareGroup& bare, SumsBy sums) {
  GroupFacts facts = bare.facts();
  const bool is_ordered = sums == SumsBy::ordered || facts.abilities.ordered_sum;
  facts.abilities = kAllAbilities;
  facts.abilities.ordered_sum = is_ordered;
  facts.abilities.windows = false;
  return facts;
}

void check_types(const Collective& call) {
  const bool reduces = call.op == comm::CommOp::reduce_scatter || call.op == comm::CommOp::all_reduce;
  for (const CollectivePart& part : call.parts) {
    const DType in = part.dtype, wire = part.wire_type(), out = part.out_type();
    if (reduces) comm::check_reducible(in, call.reduction);
    check((wire == in && out == in) || (is_floating(in) && is_floating(wire) && is_floating(out)),
          "{} cannot travel as {} and arrive as {}; only floats are cast", name(in), name(wire), name(out));
  }
}

class ComposedGroup final : public ProcessGroup {
 public:
  ComposedGroup(std::shared_ptr<comm::BareGroup> bare, SumsBy sums)
      : ProcessGroup(facts_over(*bare, sums)),
        bare_(std::move(bare)),
        who_{rank(), size(), bare_->facts().abilities, sums == SumsBy::ordered},
        sums_(sums) {}

  bool supports(Device device) const override { return bare_->supports(device) || bare_->host().supports(device); }
  void issue(Collective call, const CollectiveSite& site) override;
  HostGroup& host() override { return bare_->host(); }
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override {
    return std::make_shared<ComposedGroup>(bare_->subgroup(ranks, label), sums_);
  }

  void abort(std::string_view reason) override { bare_->abort(reason); }
  void reset() override { bare_->reset(); }
  void set_deadline(std::chrono::nanoseconds deadline) override { bare_->set_deadline(deadline); }

 private:
  void check_call(const Collective& call);

  const std::shared_ptr<comm::BareGroup> bare_;
  const comm::ComposedRank who_;
  const SumsBy sums_;
};

/// Peers may be on their way into the call, so a mistake fails the group.
void ComposedGroup::check_call(const Collective& call) {
  try {
    if (call.op == comm::CommOp::broadcast || call.op == comm::CommOp::send || call.op == comm::CommOp::recv)
      check(call.peer >= 0 && call.peer < size(), "the rank is {}, the group has {} ranks; give one in 0..{}",
            call.peer, size(), size() - 1);
    check_types(call);
  } catch (const Error& error) {
    const std::string text = fmt::format("{}: {}", comm::name(call.op), error.message());
    abort(fmt::format("made a call that is wrong: {}", text));
    throw Error(text);
  }
}

void ComposedGroup::issue(Collective call, const CollectiveSite& site) {
  comm::check_issue(*this, call, site);
  const Device device = site.queue.device();
  if (!bare_->supports(device)) return host().issue(std::move(call), site);
  check_call(call);
  std::shared_ptr<SharedWork> shared = bare_->announce(call, site);

  comm::Scratch measure;
  comm::composed_plan(call, who_, measure);
  std::vector<Loan> loans(site.loans.begin(), site.loans.end());
  Ref<Storage> memory;
  if (measure.used() > 0) {
    memory = Storage::allocate(measure.used(), MemoryCategory::communication, device);
    loans.push_back({memory, false});  // held until nobody uses it, and nobody waits for its bytes
  }
  comm::Scratch scratch = memory ? comm::Scratch(memory->address()) : comm::Scratch();
  QueueWork work{.name = site.name, .subject = site.subject, .bytes = call.bytes()};
  work.run = [bare = bare_, &queue = site.queue, &kernels = comm::group_kernels(device),
              plan = comm::composed_plan(call, who_, scratch), subject = std::string(site.subject),
              part = std::string(site.part)] {
    const comm::SubjectScope scope(subject, part);
    plan.run(*bare, kernels, queue);
  };
  work.loans = loans;
  work.abort = [bare = bare_](std::string_view reason) { bare->abort(reason); };
  work.max_in_flight = site.max_in_flight;
  auto* const on_device = dynamic_cast<DeviceQueue*>(&site.queue);  // of a library on the host's memory: none
  if (on_device) on_device->submit(std::move(work), {.shared = std::move(shared)});
  else site.queue.submit(std::move(work));
}

}  // namespace

std::shared_ptr<ProcessGroup> make_composed_group(std::shared_ptr<comm::BareGroup> bare, SumsBy sums) {
  return std::make_shared<ComposedGroup>(std::move(bare), sums);
}

}  // namespace sherd
