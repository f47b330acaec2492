#include "nn/checkpoint/full/carried_state.h"

#include <algorithm>
#include <cstring>

#include "nn/checkpoint/shared_scalars.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::ckpt {

namespace {

std::string entry_text(const nn::StateEntry& entry) { return fmt::format("\"{}\" ({})", entry.name, entry.kind); }

}  // namespace

CarriedState CarriedState::take(const std::vector<nn::StateEntry>& state) {
  const GradMode off(false);
  RankContext::current().drain_queues();
  CarriedState carried;
  for (const nn::StateEntry& entry : state) {
    check_whole(entry);
    Value value{.kind = entry.kind, .name = entry.name};
    if (entry.usually) {
      if (!is_usual(entry)) value.scalar = entry.slot->value().item<float>();
    } else {
      const Tensor here = to(contiguous(state_tensor(entry).local().detach()), Device::cpu());
      value.dtype = here.dtype();
      value.bytes = static_cast<std::size_t>(here.bytes());
      value.data = std::make_unique_for_overwrite<std::byte[]>(value.bytes);
      if (value.bytes > 0) std::memcpy(value.data.get(), here.raw(), value.bytes);
    }
    carried.values_.push_back(std::move(value));
  }
  return carried;
}

/// Null if there is nothing at all.
const CarriedState::Value* CarriedState::at(std::size_t index, const nn::StateEntry& entry) const {
  if (is_empty()) return nullptr;
  const Value* const value = index < values_.size() ? &values_[index] : nullptr;
  check(value && value->kind == entry.kind && value->name == entry.name, "the state that was carried on has no {} here",
        entry_text(entry));
  return value;
}

// Two numbers for each entry with a default: whether it has its own value, and that.
std::vector<std::optional<float>> CarriedState::scalars_of(const std::vector<nn::StateEntry>& state,
                                                           const std::optional<StateHolders>& holders) const {
  std::vector<float> numbers;
  for (const std::size_t i : indices(state)) {
    const Value* const value = at(i, state[i]);
    const std::optional<float> scalar = value ? value->scalar : std::nullopt;
    numbers.insert(numbers.end(), {scalar ? 1.0f : 0.0f, scalar.value_or(0)});
  }
  if (holders) {
    holders->group.host().broadcast({in_place(numbers.data(), DType::f32, static_cast<std::int64_t>(numbers.size()))},
                                    holders->root);
  }
  std::vector<std::optional<float>> scalars;
  for (const std::size_t i : indices(state))
    scalars.push_back(numbers[2 * i] != 0 ? std::optional(numbers[2 * i + 1]) : std::nullopt);
  return scalars;
}

void CarriedState::give(const std::vector<nn::StateEntry>& state, const std::optional<StateHolders>& holders) const {
  const PurposeScope purpose("CarriedState::give");
  const GradMode off(false);
  check(holders || !is_empty(), "there is no state to go on with");
  const std::vector<std::optional<float>> numbers = scalars_of(state, holders);
  SharedScalars scalars(state, [&](const nn::StateEntry& entry) -> std::optional<float> {
    for (const std::size_t i : indices(state))
      if (state[i].slot == entry.slot && entry.usually) return numbers[i];
    return std::nullopt;
  });
  for (const std::size_t i : indices(state)) {
    const nn::StateEntry& entry = state[i];
    if (entry.usually) continue;  // when what they are by default is there
    const Tensor local = state_tensor(entry).local();
    Tensor loaded = Tensor::empty(local.shape(), local.dtype());
    const auto size = static_cast<std::size_t>(loaded.bytes());
    if (const Value* const value = at(i, entry)) {
      check(value->dtype == local.dtype() && value->bytes == size, "{} was carried on as {} bytes of {}, here it is {}",
            entry_text(entry), value->bytes, name(value->dtype), local);
      if (size > 0) std::memcpy(loaded.raw(), value->data.get(), size);
    }
    if (holders) {
      holders->group.host().broadcast({in_place(loaded.raw(), loaded.dtype(), loaded.numel())}, holders->root);
    }
    if (loaded.numel() > 0) copy_into(local, std::move(loaded));
    mark_loaded(entry);
  }
  for (const nn::StateEntry& entry : state) {
    if (!entry.usually) continue;
    scalars.load(entry);
    entry.slot->mark_whole();
  }
}

}  // namespace sherd::ckpt
