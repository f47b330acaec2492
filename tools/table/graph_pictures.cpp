#include "tools/table/graph_pictures.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/tensor/indices.h"
#include "tools/table/plot.h"
#include "tools/table/svg.h"

namespace sherd::table {

namespace {

using ir::Footprint, ir::GraphNode, ir::Program;

constexpr std::size_t kMostColumns = 1000, kMostThings = 6;

std::int64_t sum(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

std::string exactly(std::int64_t bytes) { return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes); }

std::string module_of(const Program& program, const GraphNode& node) {
  return node.module == ir::kNoModule ? "" : " of " + program.modules[static_cast<std::size_t>(node.module)];
}

// "blocks.#.mlp"
std::string without_numbers(std::string_view text) {
  std::string result;
  for (const char c : text)
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) result += c;
    else if (result.empty() || result.back() != '#') result += '#';
  return result;
}

// By value, what it is called while the node runs; empty: it is not there. Arguments, slots and constants always are.
std::vector<std::string> names_at(const Program& program, std::size_t last) {
  std::vector<std::string> names(program.values.size());
  const auto name = [&](ir::ValueId value) -> std::string& { return names[static_cast<std::size_t>(value)]; };
  const auto unit = [&](ir::ValueId value) {
    name(value) = "gathered " + program.units[static_cast<std::size_t>(program.value(value).source)];
  };
  for (const std::size_t v : indices(names))
    if (program.values[v].kind == ir::ValueKind::unit && !program.values[v].is_absent)
      unit(static_cast<ir::ValueId>(v));
  for (std::size_t i = 0;; ++i) {
    const GraphNode& node = program.nodes[i];
    for (const ir::TensorRef& out : node.out)
      if (program.value(out.value).kind == ir::ValueKind::temporary)
        name(out.value) = std::string(node.op->name) + module_of(program, node);
    if (node.scratch != ir::kNoValue) name(node.scratch) = "scratch of " + std::string(node.op->name);
    std::ranges::for_each(node.restores, unit);
    if (i == last) return names;
    for (const auto* gone : {&node.frees, &node.releases})
      for (const ir::ValueId value : *gone) name(value).clear();
  }
}

// The largest first, a line each.
std::vector<std::string> things_at(const Program& program, std::size_t node) {
  const std::vector<std::string> names = names_at(program, node);
  std::map<std::string, std::pair<std::int64_t, int>> things;  // bytes, how many
  for (const std::size_t v : indices(names)) {
    if (names[v].empty()) continue;
    auto& [bytes, count] = things[without_numbers(names[v])];
    bytes += program.values[v].bytes;
    ++count;
  }
  std::vector<std::pair<std::pair<std::int64_t, int>, std::string>> largest;
  for (const auto& [name, thing] : things) largest.emplace_back(thing, name);
  std::ranges::sort(largest, std::greater());
  largest.resize(std::min(largest.size(), kMostThings));
  std::vector<std::string> texts;
  for (const auto& [thing, name] : largest)
    texts.push_back(fmt::format("held: {} {}{}", format_bytes(thing.first),
                                thing.second > 1 ? fmt::format("in {} x ", thing.second) : "", name));
  return texts;
}

// Where nodes share a column, the one that holds most is drawn.
std::vector<std::size_t> drawn_nodes(const Footprint& footprint) {
  const std::size_t nodes = footprint.by_node.size(), columns = std::min(nodes, kMostColumns);
  std::vector<std::size_t> drawn;
  for (const std::size_t c : up_to(columns)) {
    std::size_t most = c * nodes / columns;
    for (std::size_t i = most; i < (c + 1) * nodes / columns; ++i)
      if (sum(footprint.by_node[i]) > sum(footprint.by_node[most])) most = i;
    drawn.push_back(most);
  }
  return drawn;
}

Plot plot_of(const DrawnProgram& drawn, std::int64_t beside, double most) {
  const Footprint& held = *drawn.footprint;
  const Program& program = *drawn.program;
  Plot plot;
  plot.title = drawn.name;
  plot.x = {"node of the step", 0, static_cast<double>(held.by_node.size())};
  plot.y = {"MB held", 0, most, 1e6};
  const std::vector<std::size_t> nodes = drawn_nodes(held);
  plot.at.assign(nodes.begin(), nodes.end());
  if (beside > 0) plot.areas.push_back({"beside", "#d8d8d8", std::vector(nodes.size(), static_cast<double>(beside))});
  for (const std::size_t c : indices(held.most)) {
    if (held.most[c] == 0) continue;
    const auto category = static_cast<MemoryCategory>(c);
    Area& area = plot.areas.emplace_back(std::string(name(category)), std::string(color_of(category)));
    for (const std::size_t node : nodes) area.heights.push_back(static_cast<double>(held.by_node[node][c]));
  }
  std::string where = "before the first node";
  if (held.node >= 0) {
    const GraphNode& node = program.nodes[static_cast<std::size_t>(held.node)];
    where = fmt::format("node {}: {}{}, {}", held.node, node.op->name, module_of(program, node), name(node.phase));
    plot.about = things_at(program, static_cast<std::size_t>(held.node));
  }
  plot.marks = {
      {std::max(held.node, 0) + 0.0, static_cast<double>(held.peak + beside), format_bytes(held.peak + beside)}};
  plot.about.insert(plot.about.begin(), {fmt::format("peak {} at {}", exactly(held.peak + beside), where),
                                         fmt::format("then: {}{}", describe(held.at_peak),
                                                     beside > 0 ? ", beside " + exactly(beside) : "")});
  return plot;
}

}  // namespace

std::string memory_svg(std::span<const DrawnProgram> programs, std::int64_t beside,
                       std::optional<std::int64_t> budget) {
  std::int64_t most = budget.value_or(0);
  for (const DrawnProgram& drawn : programs) most = std::max(most, drawn.footprint->peak + beside);
  std::vector<Plot> plots;
  for (const DrawnProgram& drawn : programs) {
    plots.push_back(plot_of(drawn, beside, 1.1 * static_cast<double>(most)));
    if (budget) plots.back().levels = {{0, static_cast<double>(*budget), "budget " + exactly(*budget)}};
  }
  return to_svg(plots);
}

std::string budget_svg(std::span<const BudgetPoint> curve, const BudgetPoint& run) {
  Plot plot;
  plot.title = "time of a step over its peak";
  const auto text_of = [](const BudgetPoint& point) {
    return fmt::format("{}: {:.4g} ms", exactly(point.peak), point.seconds * 1e3);
  };
  const auto mark_of = [](const BudgetPoint& point, const std::string& text) {
    return Mark{static_cast<double>(point.peak), point.seconds, text};
  };
  double slowest = run.seconds, fastest = run.seconds;
  std::int64_t most = run.peak;
  for (const BudgetPoint& point : curve) {
    plot.line.push_back(mark_of(point, text_of(point)));
    plot.about.push_back(text_of(point));
    slowest = std::max(slowest, point.seconds);
    fastest = std::min(fastest, point.seconds);
    most = std::max(most, point.peak);
  }
  plot.marks = {mark_of(run, "this run, " + text_of(run))};
  if (!curve.empty()) plot.marks.push_back(mark_of(curve[0], "the least that it can hold, " + text_of(curve[0])));
  const std::int64_t least = std::min(run.peak, curve.empty() ? run.peak : curve[0].peak);
  plot.x = {"peak of the rank, MB", 0.9 * static_cast<double>(least), 1.05 * static_cast<double>(most), 1e6};
  plot.y = {"ms a step, predicted", 0.9 * fastest, std::max(1.1 * slowest, 1e-6), 1e-3};
  return to_svg({plot});
}

}  // namespace sherd::table
