#include "nn/parallel/style.h"

#include <algorithm>

namespace sherd::nn {

Layouts Layouts::at(std::initializer_list<std::pair<std::size_t, Placement>> entries) {
  Layouts layouts;
  for (const auto& [index, placement] : entries) {
    layouts.entries_.resize(std::max(layouts.entries_.size(), index + 1));
    layouts.entries_[index] = placement;
  }
  return layouts;
}

using Side = ModuleLayout::Side;

namespace {
/// A layout whose input is `input` unless that is given.
ModuleLayout layout(Side side, const LayerPlacements& p, Placement input, std::optional<Placement> output) {
  return {.side = side, .from = p.from.value_or(input), .inputs = p.input.value_or(input), .outputs = output};
}
}  // namespace

Style colwise(const LayerPlacements& p) {
  const ModuleLayout both = layout(Side::out, p, Replicate(), p.output);
  return {.name = "colwise", .linear = both, .embedding = both};
}

Style rowwise(const LayerPlacements& p) {
  const Placement output = p.output.value_or(Replicate());
  return {.name = "rowwise",
          .linear = layout(Side::in, p, Shard(-1), output),
          .embedding = layout(Side::vocabulary, p, Replicate(), output)};
}

Style sequence_parallel(int dim) {
  const Layouts first = Layouts::at({{0, Shard(dim)}});
  return {.name = "sequence_parallel", .any = ModuleLayout{.from = first, .inputs = first}};
}

Style prepare_input(const PrepareInput& o) {
  return {.name = "prepare_input", .any = ModuleLayout{.from = o.from, .inputs = o.to}};
}

Style prepare_output(const PrepareOutput& o) {
  return {.name = "prepare_output",
          .any = ModuleLayout{.outputs_from = o.from, .outputs = o.to, .local_outputs = o.local}};
}

}  // namespace sherd::nn
