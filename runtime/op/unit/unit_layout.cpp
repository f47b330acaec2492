#include "runtime/op/unit/unit_layout.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "runtime/comm/group/chunks.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/living.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// Layouts of this process by the hash of their content. Ranks that are threads share it.
struct Interned {
  std::mutex mutex;
  Living<std::uint64_t, UnitLayout> by_hash;
};
Interned& interned() {
  static Interned& layouts = *new Interned;  // never destroyed: ranks may end after the program's statics
  return layouts;
}

/// A layout as this rank knows it. Other ranks of this process may have the same object: when a label is free again
/// must not depend on when they drop it.
struct LabelledUnit {
  UnitLayoutPtr layout;
  std::string label;
};
UnitLayoutPtr layout_of(const std::shared_ptr<const LabelledUnit>& known) {
  return known ? UnitLayoutPtr(known, known->layout.get()) : nullptr;
}

// State of the rank context.
struct KnownUnits {
  Living<std::string, LabelledUnit> by_label;
  Living<const UnitLayout*, LabelledUnit> by_layout;

  std::shared_ptr<const LabelledUnit> label(UnitLayoutPtr layout) {
    if (auto known = by_layout.find(layout.get())) return known;
    const std::string label = free_name(by_label, layout->name);
    const auto known = std::make_shared<const LabelledUnit>(std::move(layout), label);
    by_label.add(label, known);
    by_layout.add(known->layout.get(), known);
    return known;
  }
};

// Sizes of a text may be anything; products of what passes fit 64 bits, also of the other dims where one is empty.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
constexpr int kMostRanks = 1 << 20;

bool fits_memory(const UnitPiece& p) {
  std::int64_t bytes = std::max(byte_size(p.full_dtype), byte_size(p.dtype));
  for (const std::int64_t size : p.shape) {
    const std::int64_t factor = std::max(size, std::int64_t{1});
    if (size < 0 || bytes > kMostBytes / factor) return false;
    bytes *= factor;
  }
  return true;
}

// Elements for each index of the dim that is sharded.
std::int64_t row_elements(const UnitPiece& p) {
  std::int64_t row = 1;
  for (const int d : indices(p.shape)) row *= d == p.dim ? 1 : p.shape[d];
  return row;
}

// Rows of the shards before this rank's.
std::int64_t rows_before(const UnitLayout& unit, const UnitPiece& p) {
  if (p.rows.empty()) return chunk_begin(p.shape[p.dim], unit.shards, unit.shard);
  return std::accumulate(p.rows.begin(), p.rows.begin() + unit.shard, std::int64_t{0});
}

void check_piece(const UnitLayout& unit, std::size_t index) {
  const UnitPiece& p = unit.pieces[index];
  const auto demand = [&](bool holds, std::string_view what) {
    check(holds, "unit \"{}\": piece {}, {}{}, {}", unit.name, index, sherd::name(p.dtype), p.shape, what);
  };
  demand(!p.shape.empty() && fits_memory(p), "has no dim to shard, or more elements than memory has bytes");
  demand(p.rows.empty() || p.rows.size() == static_cast<std::size_t>(unit.shards),
         "lists rows for another number of shards than there are");
  demand(p.dim >= 0 && p.dim < p.shape.size(), "has no such dim to shard as it names");
  std::int64_t left = p.shape[p.dim];
  for (const std::int64_t here : p.rows) {
    demand(here >= 0 && here <= left, "does not have as many rows as its shards");
    left -= here;
  }
  demand(p.rows.empty() || left == 0, "has more rows than its shards");
  const auto fits = [](std::int64_t offset, std::int64_t count, DType dtype, std::int64_t bytes) {
    return offset >= 0 && offset <= bytes && offset % byte_size(dtype) == 0 &&
           count * byte_size(dtype) <= bytes - offset;
  };
  demand(fits(p.shard_offset, unit.count_here(p), p.dtype, unit.shard_bytes), "leaves the shards");
  demand(fits(p.full_offset, numel(p.shape), p.full_dtype, unit.full_bytes), "leaves the full tensors");
  if (!unit.in_place) return;
  const std::int64_t bytes_before = rows_before(unit, p) * row_elements(p) * byte_size(p.dtype);
  demand(p.dim == 0 && p.dtype == p.full_dtype && p.shard_offset == p.full_offset + bytes_before,
         "is in place, and its shard is not what the full tensor has there");
}

}  // namespace

void UnitLayout::check_sound() const {
  check(!name.empty(), "a unit needs a name");
  check(shards >= 1 && shards <= kMostRanks && shard >= 0 && shard < shards && replicas >= 1 && replicas <= kMostRanks,
        "unit \"{}\": shard {} of {} on {} replicas is none", name, shard, shards, replicas);
  check(
      shard_axis.empty() == (shards == 1) && replica_axis.empty() == (replicas == 1),
      "unit \"{}\": {} shards over the group \"{}\", {} replicas over \"{}\": a group is named where there are several",
      name, shards, shard_axis, replicas, replica_axis);
  check(shard_bytes >= 0 && full_bytes >= 0, "unit \"{}\": {} bytes of shards and {} of full tensors are none", name,
        shard_bytes, full_bytes);
  check(!in_place || shard_bytes == full_bytes,
        "unit \"{}\": {} bytes of shards and {} of full tensors are not one buffer", name, shard_bytes, full_bytes);
  for (const std::size_t i : indices(pieces)) check_piece(*this, i);
}

UnitLayoutPtr UnitLayout::intern(UnitLayout layout) {
  return layout_of(RankContext::current().state<KnownUnits>().label(of_content(std::move(layout))));
}

UnitLayoutPtr UnitLayout::of_content(UnitLayout layout) {
  layout.check_sound();
  const std::uint64_t hash = hash_attrs(attr_kind<UnitLayout>, &layout);
  Interned& all = interned();
  const std::lock_guard lock(all.mutex);
  if (auto known = all.by_hash.find(
          hash, [&](const UnitLayout& other) { return equal_attrs(attr_kind<UnitLayout>, &other, &layout); }))
    return known;
  // In memory of its own, which an entry of the table does not hold.
  const std::shared_ptr<UnitLayout> made(new UnitLayout(std::move(layout)));
  made->self.owners_ = made;
  all.by_hash.add(hash, made);
  return made;
}

std::size_t UnitLayout::count_interned() {
  Interned& all = interned();
  const std::lock_guard lock(all.mutex);
  return all.by_hash.count_living();
}

UnitLayoutPtr UnitLayout::shared() const {
  check_interned();
  return self.owners_.lock();
}

void UnitLayout::check_interned() const {
  check(!self.owners_.expired(),
        "unit \"{}\": this layout is a copy; UnitLayout::intern() gives the one that rows take", name);
}

std::int64_t UnitLayout::count(const UnitPiece& p, int of_shard) const {
  const std::int64_t rows =
      p.rows.empty() ? chunk_size(p.shape[p.dim], shards, of_shard) : p.rows[static_cast<std::size_t>(of_shard)];
  return rows * row_elements(p);
}

std::int64_t UnitLayout::blocks(const UnitPiece& p) {
  std::int64_t blocks = 1;
  for (const int d : up_to(p.dim)) blocks *= p.shape[d];
  return std::max(blocks, std::int64_t{1});  // of no elements
}

std::vector<std::int64_t> UnitLayout::counts(const UnitPiece& p) const {
  std::vector<std::int64_t> result(static_cast<std::size_t>(shards));
  for (const int r : up_to(shards)) result[static_cast<std::size_t>(r)] = count(p, r);
  return result;
}

std::string UnitLayout::print() const {
  AttrWriter out(false);
  out.fields(attr_kind<UnitLayout>, this);
  return out.take();
}

UnitLayout parse_unit_layout(std::string_view text) {
  return parse_attrs(attr_kind<UnitLayout>, text).as<UnitLayout>();
}

std::string label_of(const UnitLayout& layout) {
  const auto known = RankContext::current().state<KnownUnits>().by_layout.find(&layout);
  return known ? known->label : layout.name;
}

void AttrValue<UnitRef>::print(const UnitRef& layout, AttrWriter& out) {
  // Labels count the layouts of a rank, and what is two layouts on one may be the same on another.
  if (!layout) out.name("");
  else if (out.units()) out.name(out.units()(*layout));
  else out.name(out.is_rank_neutral() ? layout->name : label_of(*layout));
}

void AttrValue<UnitRef>::read(UnitRef& layout, AttrReader& in) {
  const std::string name = in.name();
  if (in.units()) {
    layout = in.units()(name);
    if (!layout) in.fail_because("the text has no layout of a unit of that name");
    return;
  }
  layout = layout_of(RankContext::current().state<KnownUnits>().by_label.find(name));
  if (!layout) in.fail_because("no unit of that name is known on this rank");
}

std::uint64_t AttrValue<UnitRef>::hash(const UnitRef& layout) {
  return layout ? hash_attrs(attr_kind<UnitLayout>, layout.get()) : 0;
}

}  // namespace sherd
