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

void add_roundings(const GraphNode& node, std::vector<std::string>& texts) {
  const auto* const reduction = attributes_of<UnitReduceAttrs>(node);
  if (!reduction) return;
  for (const ReducedPiece& p : reduction->pieces)
    if (const UnitPiece& piece = reduction->unit->piece(p.piece);
        byte_size(piece.wire) < byte_size(piece.gradient_dtype()))
      add_once(texts, std::string(name(piece.wire)));
}

}  // namespace

std::string order_of_sums(const Program& program) {
  std::vector<std::string> trees, roundings;
  for (const GraphNode& node : program.nodes) {
    if (const auto* const loss = attributes_of<CrossEntropyAttrs>(node); loss && loss->leaves > 1)
      add_once(trees, tree_text(loss->leaves, "leaves"));
    const std::optional<Transfer> transfer = transfer_of(node);
    if (!transfer || !adds(node, *transfer)) continue;
    add_once(trees, tree_text(transfer->ranks, fmt::format("ranks of {}", transfer->group)));
    add_roundings(node, roundings);
  }
  if (trees.empty()) return "";
  return fmt::format("sums {}{}", fmt::join(trees, ", "),
                     roundings.empty() ? "" : fmt::format(", rounds gradients to {}", fmt::join(roundings, " and ")));
}

}  // namespace sherd::ir
