#include "compile/ir/analysis/sums.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "compile/ir/analysis/seconds.h"
#include "runtime/comm/group/sum_order.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/unit/unit.h"

namespace sherd::ir {

namespace {

void add_once(std::vector<std::string>& texts, std::string text) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
}

std::string tree_text(std::int64_t leaves, std::string_view what) {
  const int levels = tree_levels(static_cast<std::size_t>(leaves));
  return fmt::format("{} {} in {} level{}", leaves, what, levels, levels == 1 ? "" : "s");
}

template <class Attributes>
const Attributes* attributes_of(const GraphNode& node) {
  const AttrKind* const kind = node.attrs.kind();
  return kind && *kind == attr_kind<Attributes> ? &node.attrs.as<Attributes>() : nullptr;
}

bool adds(const GraphNode& node, const Transfer& transfer) {
  if (transfer.movement != Movement::scatter && transfer.movement != Movement::reduce_all) return false;
  const auto* const call = attributes_of<CollectiveAttrs>(node);
  const auto kind = call ? static_cast<ReduceKind>(call->kind) : ReduceKind::sum;
  return kind != ReduceKind::max && kind != ReduceKind::min;
}

/// To which type a unit's gradients are rounded before sums, and over which groups: several round more than once.
struct Rounding {
  const void* unit;
  std::string dtype;
  std::vector<std::string> groups{};
};

template <class Reduction>
void add_roundings(const Reduction* reduction, const std::string& group, std::vector<Rounding>& roundings) {
  if (!reduction) return;
  for (const auto& p : reduction->pieces) {
    const UnitPiece& piece = reduction->unit->piece(p.piece);
    if (byte_size(piece.wire) >= byte_size(piece.gradient_dtype())) continue;
    const void* const unit = &*reduction->unit;
    const auto found = std::ranges::find_if(
        roundings, [&](const Rounding& r) { return r.unit == unit && r.dtype == name(piece.wire); });
    Rounding& own = found != roundings.end() ? *found : roundings.emplace_back(unit, std::string(name(piece.wire)));
    add_once(own.groups, group);
  }
}

std::string rounding_text(const Rounding& rounding) {
  const std::size_t times = rounding.groups.size();
  return times == 1 ? rounding.dtype
                    : fmt::format("{} {} (over {})", rounding.dtype, times == 2 ? "twice" : "more than twice",
                                  fmt::join(rounding.groups, ", then "));
}

}  // namespace

std::string order_of_sums(const Program& program) {
  std::vector<std::string> trees, roundings;
  std::vector<Rounding> of_units;
  for (const GraphNode& node : program.nodes) {
    if (const auto* const loss = attributes_of<CrossEntropyAttrs>(node); loss && loss->leaves > 1)
      add_once(trees, tree_text(loss->leaves, "leaves"));
    const std::optional<Transfer> transfer = transfer_of(node);
    if (!transfer || !adds(node, *transfer)) continue;
    add_once(trees, tree_text(transfer->ranks, fmt::format("ranks of {}", transfer->group)));
    add_roundings(attributes_of<UnitReduceAttrs>(node), transfer->group, of_units);
    add_roundings(attributes_of<ReplicaSumAttrs>(node), transfer->group, of_units);
  }
  for (const Rounding& rounding : of_units) add_once(roundings, rounding_text(rounding));
  if (trees.empty()) return "";
  return fmt::format("sums {}{}", fmt::join(trees, ", "),
                     roundings.empty() ? "" : fmt::format(", rounds gradients to {}", fmt::join(roundings, " and ")));
}

}  // namespace sherd::ir
