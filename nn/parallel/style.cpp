#include "nn/parallel/style.h"

#include <algorithm>

namespace sherd::nn {

Style::Layouts Style::Layouts::at(std::initializer_list<std::pair<std::size_t, Placement>> entries) {
  Style::Layouts layouts;
  for (const auto& [index, placement] : entries) {
    layouts.entries_.resize(std::max(layouts.entries_.size(), index + 1));
    layouts.entries_[index] = placement;
  }
  return layouts;
}

using Side = Style::Layout::Side;

namespace {
/// A layout whose input is `input` unless that is given.
Style::Layout layout(Side side, const Style::Around& p, Placement input, std::optional<Placement> output) {
  return {.side = side, .from = p.from.value_or(input), .inputs = p.input.value_or(input), .outputs = output};
}
}  // namespace

Style colwise(const Style::Around& p) {
  const Style::Layout both = layout(Side::out, p, Replicate(), p.output);
  return {.name = "colwise", .linear = both, .embedding = both};
}

Style rowwise(const Style::Around& p) {
  const Placement output = p.output.value_or(Replicate());
  return {.name = "rowwise",
          .linear = layout(Side::in, p, Shard(-1), output),
          .embedding = layout(Side::vocabulary, p, Replicate(), output)};
}

Style sequence_parallel(int dim) {
  const Style::Layouts first = Style::Layouts::at({{0, Shard(dim)}});
  return {.name = "sequence_parallel", .any = Style::Layout{.from = first, .inputs = first}};
}

Style prepare_input(const Style::Input& o) {
  return {.name = "prepare_input", .any = Style::Layout{.from = o.from, .inputs = o.to}};
}

Style prepare_output(const Style::Output& o) {
  return {.name = "prepare_output",
          .any = Style::Layout{.outputs_from = o.from, .outputs = o.to, .local_outputs = o.local}};
}

}  // namespace sherd::nn
