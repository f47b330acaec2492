#include "runtime/op/unit_layout.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "runtime/comm/group/chunks.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

// Layouts of this process by the hash of their content. Ranks that are threads share it.
struct Interned {
  std::mutex mutex;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<const UnitLayout>> by_hash;
};
Interned& interned() {
  static Interned& layouts = *new Interned;  // never destroyed: layouts are immortal
  return layouts;
}

// State of the rank context: layouts by label, in the order in which they came.
struct KnownUnits {
  std::unordered_map<std::string, const UnitLayout*> by_label;
  std::unordered_map<const UnitLayout*, std::string> labels;
  void add(const UnitLayout* layout) {
    if (labels.contains(layout)) return;
    std::string label = layout->name;
    for (int i = 2; by_label.contains(label); ++i) label = fmt::format("{}~{}", layout->name, i);
    by_label[label] = layout;
    labels[layout] = label;
  }
};

// Row counts of a text may be anything; products of what passes fit 64 bits.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

std::int64_t full_bytes_of(const UnitPiece& p) {
  std::int64_t bytes = byte_size(p.full_dtype) > byte_size(p.dtype) ? byte_size(p.full_dtype) : byte_size(p.dtype);
  for (const std::int64_t size : p.shape) {
    if (size < 0 || size > kMostBytes || bytes > kMostBytes / (size > 0 ? size : 1)) return -1;
    bytes *= size;
  }
  return bytes;
}

void check_piece(const UnitLayout& unit, std::size_t index) {
  const UnitPiece& p = unit.pieces[index];
  const auto demand = [&](bool holds, std::string_view what) {
    check(holds, "unit \"{}\": piece {}, {}{}, {}", unit.name, index, sherd::name(p.dtype), p.shape, what);
  };
  demand(!p.shape.empty() && full_bytes_of(p) >= 0, "has no dim to shard, or more elements than memory has bytes");
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
  std::int64_t before = 0;  // elements of the ranks before this one
  for (int r = 0; r < unit.shard; ++r) before += unit.count(p, r);
  demand(p.dim == 0 && p.dtype == p.full_dtype && p.shard_offset == p.full_offset + before * byte_size(p.dtype),
         "is in place, and its shard is not what the full tensor has there");
}

constexpr int kMostRanks = 1 << 20;

}  // namespace

const UnitLayout* UnitLayout::intern(UnitLayout layout) {
  check(!layout.name.empty(), "a unit needs a name");
  check(layout.shards >= 1 && layout.shards <= kMostRanks && layout.shard >= 0 && layout.shard < layout.shards &&
            layout.replicas >= 1,
        "unit \"{}\": shard {} of {} on {} replicas is none", layout.name, layout.shard, layout.shards,
        layout.replicas);
  check(
      layout.shard_axis.empty() == (layout.shards == 1) && layout.replica_axis.empty() == (layout.replicas == 1),
      "unit \"{}\": {} shards over the group \"{}\", {} replicas over \"{}\": a group is named where there are several",
      layout.name, layout.shards, layout.shard_axis, layout.replicas, layout.replica_axis);
  check(!layout.in_place || layout.shard_bytes == layout.full_bytes,
        "unit \"{}\": {} bytes of shards and {} of full tensors are not one buffer", layout.name, layout.shard_bytes,
        layout.full_bytes);
  for (std::size_t i = 0; i < layout.pieces.size(); ++i) check_piece(layout, i);
  const std::uint64_t hash = hash_attrs(attr_kind<UnitLayout>, &layout);
  const UnitLayout* result = nullptr;
  {
    Interned& all = interned();
    const std::lock_guard lock(all.mutex);
    const auto [first, last] = all.by_hash.equal_range(hash);
    for (auto known = first; known != last && !result; ++known)
      if (equal_attrs(attr_kind<UnitLayout>, known->second.get(), &layout)) result = known->second.get();
    if (!result) {
      auto owned = std::make_unique<const UnitLayout>(std::move(layout));
      result = owned.get();
      all.by_hash.emplace(hash, std::move(owned));
    }
  }
  RankContext::current().state<KnownUnits>().add(result);
  return result;
}

std::int64_t UnitLayout::count(const UnitPiece& p, int of_shard) const {
  std::int64_t row = 1;
  for (int d = 0; d < p.shape.size(); ++d) row *= d == p.dim ? 1 : p.shape[d];
  const std::int64_t rows =
      p.rows.empty() ? chunk_size(p.shape[p.dim], shards, of_shard) : p.rows[static_cast<std::size_t>(of_shard)];
  return rows * row;
}

std::int64_t UnitLayout::blocks(const UnitPiece& p) {
  std::int64_t blocks = 1;
  for (int d = 0; d < p.dim; ++d) blocks *= p.shape[d];
  return std::max(blocks, std::int64_t{1});  // of no elements
}

std::vector<std::int64_t> UnitLayout::counts(const UnitPiece& p) const {
  std::vector<std::int64_t> result(static_cast<std::size_t>(shards));
  for (int r = 0; r < shards; ++r) result[static_cast<std::size_t>(r)] = count(p, r);
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
  const auto& labels = RankContext::current().state<KnownUnits>().labels;
  const auto found = labels.find(&layout);
  return found == labels.end() ? layout.name : found->second;
}

void AttrValue<const UnitLayout*>::print(const UnitLayout* const& layout, AttrWriter& out) {
  // Labels count the layouts of a rank, and what is two layouts on one may be the same on another.
  if (!layout) out.name("");
  else out.name(out.is_rank_neutral() ? layout->name : label_of(*layout));
}

void AttrValue<const UnitLayout*>::read(const UnitLayout*& layout, AttrReader& in) {
  const auto& by_label = RankContext::current().state<KnownUnits>().by_label;
  const auto found = by_label.find(in.name());
  if (found == by_label.end()) in.fail_because("no unit of that name is known on this rank");
  layout = found->second;
}

}  // namespace sherd
