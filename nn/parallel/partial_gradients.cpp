#include "nn/parallel/partial_gradients.h"

#include <algorithm>
#include <map>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {
struct KnownPartialGradients {
  std::map<std::uint64_t, std::weak_ptr<PartialGradients>> by_mesh;
};
}  // namespace

std::shared_ptr<PartialGradients> PartialGradients::of(const DeviceMesh& mesh) {
  auto& by_mesh = RankContext::current().state<KnownPartialGradients>().by_mesh;
  std::erase_if(by_mesh, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<PartialGradients>& known = by_mesh[mesh.id()];
  std::shared_ptr<PartialGradients> result = known.lock();
  if (!result) known = result = std::make_shared<PartialGradients>(mesh);
  return result;
}

void add_gradient(Slot& slot, Tensor local, const Shape& shape, const Spec* layout) {
  if (const Tensor& before = slot.grad(); before.defined()) {
    const DType dtype = before.dtype();
    local = cast(sherd::add(before.local().detach(), std::move(local)), dtype);
  } else if (local.storage() && local.storage()->use_count() == 1) {
    local.storage()->retag(MemoryCategory::gradients);
  }
  slot.set_grad(Tensor::distributed(shape, layout, local));
}

bool PartialGradients::has(const Slot& slot) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.slot == &slot; });
}

void PartialGradients::add(Slot& slot, Tensor partial, const Shape& shape, const Spec* layout) {
  check(in_backward(), "a Partial gradient of \"{}\" arrived outside of a backward pass, so nothing would reduce it",
        slot.name());
  if (!is_queued_) {
    is_queued_ = true;
    // Queued twice: callbacks that run at the end of the pass may still add gradients.
    at_end_of_backward([self = shared_from_this()] { at_end_of_backward([self] { self->reduce(); }); });
  }
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.slot == &slot; });
  if (known == entries_.end()) entries_.push_back({&slot, std::move(partial), shape, layout});
  else known->partial = sherd::add(std::move(known->partial), std::move(partial));
}

void PartialGradients::discard() noexcept {
  entries_.clear();
  is_queued_ = false;
}

namespace {

Tensor flat(Tensor t) {
  const std::int64_t count = t.numel();
  return reshape(std::move(t), {count});
}

// One launch per dtype: models have one.
std::vector<Tensor> sum_over(ProcessGroup& group, std::vector<Tensor> partials) {
  if (group.size() == 1) return partials;
  if (partials.size() == 1) return {all_reduce(contiguous(std::move(partials[0])), group)};
  std::vector<Tensor> rows;
  for (const Tensor& partial : partials) rows.push_back(flat(partial));
  const Tensor sums = all_reduce(cat(std::move(rows), 0), group);
  sums.storage()->retag(MemoryCategory::gradients);
  std::int64_t start = 0;
  for (Tensor& gradient : partials) {
    const std::int64_t count = gradient.numel();
    gradient = view(narrow(sums, 0, start, count), gradient.shape());
    start += count;
  }
  return partials;
}

}  // namespace

void PartialGradients::reduce() {
  is_queued_ = false;
  std::vector<Entry> entries = std::exchange(entries_, {});
  std::vector<DType> dtypes;
  for (const Entry& e : entries)
    if (std::find(dtypes.begin(), dtypes.end(), e.partial.dtype()) == dtypes.end()) dtypes.push_back(e.partial.dtype());
  for (const DType dtype : dtypes) {
    std::vector<Entry*> members;
    std::vector<Tensor> gradients;
    for (Entry& e : entries) {
      if (!e.partial.defined() || e.partial.dtype() != dtype) continue;
      members.push_back(&e);
      gradients.push_back(std::move(e.partial));
    }
    gradients = sum_over(mesh_.group(), std::move(gradients));
    for (const std::size_t i : indices(members))
      add_gradient(*members[i]->slot, std::move(gradients[i]), members[i]->shape, members[i]->layout);
  }
  for (const Entry& e : entries) e.slot->run_grad_hooks();
}

}  // namespace sherd::nn
