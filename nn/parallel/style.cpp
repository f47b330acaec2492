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

Style colwise(const ColwiseOptions& o) {
  return {.name = "colwise",
          .linear = ModuleLayout{.side = Side::out, .from = o.from, .inputs = o.input, .outputs = o.output},
          .embedding = ModuleLayout{.side = Side::out, .from = o.from, .inputs = o.input, .outputs = o.output}};
}

Style rowwise(const RowwiseOptions& o) {
  return {.name = "rowwise",
          .linear = ModuleLayout{.side = Side::in,
                                 .from = o.from.value_or(Shard(-1)),
                                 .inputs = o.input.value_or(Shard(-1)),
                                 .outputs = o.output},
          .embedding = ModuleLayout{.side = Side::vocabulary,
                                    .from = o.from.value_or(Replicate()),
                                    .inputs = o.input.value_or(Replicate()),
                                    .outputs = o.output}};
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
