#include "nn/parallel/shard/reduce/held_gradients.h"

#include <algorithm>
#include <bit>

#include "runtime/op/unit/buffer_views.h"

namespace sherd::nn {

namespace {

bool is_narrow(const UnitPiece& p) { return byte_size(p.full_dtype) < byte_size(p.wire); }
DType held_dtype(const UnitPiece& p) { return is_narrow(p) ? p.wire : p.full_dtype; }

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

UnitLayoutPtr layout_of_sums(const UnitLayout& unit) {
  if (std::ranges::none_of(unit.pieces, is_narrow)) return {};
  UnitLayout layout = unit;
  layout.full_bytes = 0;
  for (UnitPiece& p : layout.pieces) {
    p.full_dtype = held_dtype(p);
    p.full_offset = layout.full_bytes;
    layout.full_bytes += align(numel(p.shape) * byte_size(p.full_dtype));
  }
  return UnitLayout::intern(std::move(layout));
}

HeldGradients::HeldGradients(const UnitPieces& unit, bool is_tree, int passes)
    : unit_(unit), is_tree_(is_tree), wide_(layout_of_sums(unit.layout())) {
  level(is_tree ? std::bit_width(static_cast<unsigned>(passes)) - 1U : 0U);
  if (!is_apart()) return;
  local_ = layout_of_adding(unit.layout());
  joined_ = wide_ ? layout_of_adding(*wide_) : local_;
}

// Made when passes first reach it, if nobody has known of them.
HeldGradients::Level& HeldGradients::level(std::size_t k) {
  while (levels_.size() <= k) {
    const std::string digit = levels_.empty() ? "" : fmt::format(".{}", std::size_t{1} << levels_.size());
    Level next;
    for (std::size_t i = 0; i < unit_.size(); ++i) {
      const Parameter* const p = unit_.parameter(i);
      const std::string name = (p ? p->name() : fmt::format("{}.{}", unit_.layout().name, i)) + digit;
      next.pieces.push_back({std::make_unique<Slot>(name + ".held"), std::make_unique<Slot>(name + ".held_terms"),
                             std::make_unique<Slot>(name + ".held_zeros")});
    }
    levels_.push_back(std::move(next));
  }
  return levels_[k];
}

const Tensor& HeldGradients::Piece::held() const {
  const auto all = slots();
  const auto found = std::ranges::find_if(all, [](const Slot* slot) { return slot->grad().defined(); });
  return (found == all.end() ? all[0] : *found)->grad();
}

std::optional<ReduceKind> HeldGradients::Piece::kind() const {
  if (average->grad().defined()) return ReduceKind::avg;
  if (sum->grad().defined()) return ReduceKind::sum;
  return std::nullopt;
}

void HeldGradients::Piece::drop() const {
  for (Slot* slot : slots())
    if (slot->grad().defined()) slot->clear_grad();
}

Tensor HeldGradients::Level::bytes() const {
  for (const Piece& p : pieces)
    if (const Tensor& held = p.held(); held.defined()) return run_at(held, held.storage()->bytes(), 0, DType::u8);
  return {};
}

std::vector<HeldGradients::Member> HeldGradients::Level::members() const {
  std::vector<Member> all;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Tensor& held = pieces[i].held();
    if (!held.defined()) continue;
    const std::int64_t offset = held.offset() * byte_size(held.dtype());
    all.push_back({.piece = i, .kind = pieces[i].kind(), .held_offset = offset, .pass_offset = offset});
  }
  return all;
}

const Tensor& HeldGradients::gradient(std::size_t piece) const {
  for (const Level& level : levels_)
    if (const Tensor& held = level.pieces[piece].held(); held.defined()) return held;
  return levels_[0].pieces[piece].held();
}

std::vector<Tensor> HeldGradients::gradients(std::size_t piece) const {
  std::vector<Tensor> all;
  for (const Level& level : levels_)
    if (const Tensor& held = level.pieces[piece].held(); held.defined()) all.push_back(held);
  return all;
}

std::optional<ReduceKind> HeldGradients::kind(std::size_t piece) const {
  for (const Level& level : levels_)
    if (const auto kind = level.pieces[piece].kind()) return kind;
  return std::nullopt;
}

Tensor HeldGradients::bytes() const {
  for (const Level& level : levels_)
    if (Tensor bytes = level.bytes(); bytes.defined()) return bytes;
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

void HeldGradients::add(std::span<const Member> members, const UnitLayout& layout, const Tensor& pass,
                        std::int64_t bytes) {
  const bool is_first = !levels_[0].bytes().defined(), is_as_held = !wide_ || wide_.get() == &layout;
  if (is_as_held && (is_first || !is_apart())) put(levels_[0], members, pass);
  else add_up(levels_[0], members, is_as_held ? *joined_ : *local_, pass, bytes);
  if (is_tree_ && !is_first) carry();
}

// A sum of as many passes as one that waits is added to it, the earlier one first, until there is none.
void HeldGradients::carry() {
  for (std::size_t k = 0; !move_up(k, k + 1); ++k) {}
}

void HeldGradients::join() {
  std::optional<std::size_t> newer;
  for (std::size_t k = 0; k < levels_.size(); ++k) {
    if (!levels_[k].bytes().defined()) continue;
    if (newer) move_up(*newer, k);
    newer = k;
  }
}

// Returns whether nothing was there.
bool HeldGradients::move_up(std::size_t from, std::size_t to) {
  Level& sums = level(to);
  const Level& terms = levels_[from];
  const Tensor bytes = terms.bytes(), earlier = sums.bytes();
  const std::vector<Member> members = terms.members();
  if (earlier.defined() && earlier.numel() != bytes.numel()) refuse_thawed();
  if (earlier.defined()) add_up(sums, members, *joined_, bytes, bytes.numel());
  else put(sums, members, bytes);
  for (const Piece& p : terms.pieces) p.drop();
  return !earlier.defined();
}

void HeldGradients::put(Level& level, std::span<const Member> members, const Tensor& bytes) {
  for (const Member& m : members) {
    const UnitPiece& p = layout().pieces[m.piece];
    keep(level, m, view_at(bytes, p.shape, m.pass_offset, p.full_dtype));
  }
}

void HeldGradients::add_up(Level& level, std::span<const Member> members, const UnitLayout& adding, const Tensor& terms,
                           std::int64_t bytes) {
  Tensor sums = level.bytes();
  if (!sums.defined()) sums = gradient_buffer(bytes, terms.device());
  UnitReduceAttrs attrs{.unit = adding};
  std::vector<Tensor> out;
  for (const Member& m : members) {
    const UnitPiece& p = layout().pieces[m.piece];
    out.push_back(view_at(sums, p.shape, m.held_offset, p.full_dtype));
    attrs.pieces.push_back({.piece = static_cast<int>(m.piece),
                            .offset = m.pass_offset,
                            .kind = ReduceKind::sum,
                            .add_to = level.pieces[m.piece].held().defined() ? AddTo::gradient : AddTo::nothing});
  }
  start_reduce(attrs, terms, out);
  for (std::size_t i = 0; i < members.size(); ++i) keep(level, members[i], std::move(out[i]));
}

// Zeros take the kind of what was added to them, and stay the same tensor.
void HeldGradients::keep(Level& level, const Member& member, Tensor sum) {
  const Piece& p = level.pieces[member.piece];
  Slot& slot = !member.kind ? *p.zeros : *member.kind == ReduceKind::sum ? *p.sum : *p.average;
  if (slot.grad().defined()) return;
  if (p.zeros->grad().defined()) {
    sum = p.zeros->grad();
    p.zeros->clear_grad();
  }
  slot.set_grad(std::move(sum));
}

void HeldGradients::drop(std::size_t piece) {
  for (const Level& level : levels_) level.pieces[piece].drop();
}

void HeldGradients::drop_all() {
  for (std::size_t i = 0; i < unit_.size(); ++i) drop(i);
}

}  // namespace sherd::nn
