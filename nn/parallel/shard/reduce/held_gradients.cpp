#include "nn/parallel/shard/reduce/held_gradients.h"

#include <algorithm>

#include "runtime/op/unit/buffer_views.h"

namespace sherd::nn {

namespace {

bool is_narrow(const UnitPiece& p) { return byte_size(p.full_dtype) < byte_size(p.wire); }
DType held_dtype(const UnitPiece& p) { return is_narrow(p) ? p.wire : p.full_dtype; }

// The same unit, whose full tensors are what is held.
UnitLayoutPtr layout_of_held(UnitLayout layout) {
  layout.full_bytes = 0;
  for (UnitPiece& p : layout.pieces) {
    p.full_dtype = held_dtype(p);
    p.full_offset = layout.full_bytes;
    layout.full_bytes += align(numel(p.shape) * byte_size(p.full_dtype));
  }
  return UnitLayout::intern(std::move(layout));
}

// Its full gradients to what is held: a reduction of one shard, which casts and adds in one launch.
UnitLayoutPtr layout_of_adding(UnitLayout layout) {
  layout.shards = layout.replicas = 1;
  layout.shard = 0;
  layout.shard_axis.clear();
  layout.replica_axis.clear();
  layout.shard_bytes = 0;
  for (UnitPiece& p : layout.pieces) {
    p.dtype = p.wire = held_dtype(p);
    p.grad_dtype.reset();
    p.rows.clear();
    p.shard_offset = layout.shard_bytes;
    layout.shard_bytes += align(numel(p.shape) * byte_size(p.dtype));
  }
  return UnitLayout::intern(std::move(layout));
}

}  // namespace

HeldGradients::HeldGradients(const UnitPieces& unit) : unit_(unit) {
  for (std::size_t i = 0; i < unit.size(); ++i) {
    const Parameter* const p = unit.parameter(i);
    const std::string name = p ? p->name() : fmt::format("{}.{}", unit.layout().name, i);
    pieces_.push_back({std::make_unique<Slot>(name + ".held"), std::make_unique<Slot>(name + ".held_terms"),
                       std::make_unique<Slot>(name + ".held_zeros")});
  }
  if (std::ranges::none_of(unit.layout().pieces, is_narrow)) return;
  wide_ = layout_of_held(unit.layout());
  local_ = layout_of_adding(unit.layout());
}

const Tensor& HeldGradients::gradient(std::size_t piece) const {
  const auto slots = pieces_[piece].slots();
  const auto held = std::ranges::find_if(slots, [](const Slot* slot) { return slot->grad().defined(); });
  return (held == slots.end() ? slots[0] : *held)->grad();
}

std::optional<ReduceKind> HeldGradients::kind(std::size_t piece) const {
  if (pieces_[piece].average->grad().defined()) return ReduceKind::avg;
  if (pieces_[piece].sum->grad().defined()) return ReduceKind::sum;
  return std::nullopt;
}

Tensor HeldGradients::bytes() const {
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (const Tensor& held = gradient(i); held.defined()) return run_at(held, held.storage()->bytes(), 0, DType::u8);
  return {};
}

std::int64_t HeldGradients::offset(std::size_t piece) const {
  const Tensor& held = gradient(piece);
  return held.offset() * byte_size(held.dtype());
}

void HeldGradients::refuse_thawed() const {
  fail(
      "parameters of the unit \"{}\" were thawed while gradients of earlier backward passes wait to be reduced: reduce "
      "them first, with set_requires_gradient_sync() on or finalize_backward()",
      unit_.layout().name);
}

void HeldGradients::add(std::span<const Member> members, const Tensor& pass, std::int64_t bytes) {
  Tensor held = is_apart() ? this->bytes() : pass;
  if (!held.defined()) held = gradient_buffer(bytes, pass.device());
  UnitReduceAttrs attrs{.unit = *local_};
  std::vector<Tensor> out;
  for (const Member& m : members) {
    const UnitPiece& p = layout().pieces[m.piece];
    out.push_back(view_at(held, p.shape, m.held_offset, p.full_dtype));
    attrs.pieces.push_back({.piece = static_cast<int>(m.piece),
                            .offset = m.pass_offset,
                            .kind = ReduceKind::sum,
                            .add_to = has(m.piece) ? AddTo::gradient : AddTo::nothing});
  }
  if (is_apart()) start_reduce(attrs, pass, out);
  for (std::size_t i = 0; i < members.size(); ++i) keep(members[i], std::move(out[i]));
}

// Zeros take the kind of what was added to them, and stay the same tensor.
void HeldGradients::keep(const Member& member, Tensor sum) {
  const Piece& p = pieces_[member.piece];
  Slot& slot = !member.kind ? *p.zeros : *member.kind == ReduceKind::sum ? *p.sum : *p.average;
  if (slot.grad().defined()) return;
  if (p.zeros->grad().defined()) {
    sum = p.zeros->grad();
    p.zeros->clear_grad();
  }
  slot.set_grad(std::move(sum));
}

void HeldGradients::drop(std::size_t piece) {
  for (Slot* slot : pieces_[piece].slots())
    if (slot->grad().defined()) slot->clear_grad();
}

void HeldGradients::drop_all() {
  for (std::size_t i = 0; i < pieces_.size(); ++i) drop(i);
}

}  // namespace sherd::nn
