#include "tools/train/module_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <ranges>

#include "nn/parallel/shard/unit/unit_layout.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/op/copy/offload.h"
#include "runtime/tensor/indices.h"

namespace sherd::train {

namespace {

constexpr std::size_t kColumns = 6;
using Amounts = std::array<std::int64_t, kColumns>;
constexpr std::array<std::string_view, kColumns> kTitles{"parameters", "gathered",  "gradients",
                                                         "gathered",   "optimizer", "saved activations"};

Amounts amounts_of(const ModuleMemory& m) {
  return {m.parameters.here, m.parameters.gathered, m.gradients.here, m.gradients.gathered, m.optimizer, m.saved};
}

std::string module_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

// In the order in which modules come in the model.
class Rows {
 public:
  explicit Rows(nn::Module& model) {
    model.for_each_module([this](nn::Module& module) { of(module.path()); });
  }
  ModuleMemory& of(const std::string& path) {
    const auto [place, is_new] = places_.try_emplace(path, rows_.size());
    if (is_new) rows_.push_back({.path = path});
    return rows_[place->second];
  }
  std::vector<ModuleMemory> take() {
    std::erase_if(rows_, [](const ModuleMemory& m) { return amounts_of(m) == Amounts{}; });
    return std::move(rows_);
  }

 private:
  std::map<std::string, std::size_t> places_;
  std::vector<ModuleMemory> rows_;
};

void add_gathered(Rows& rows, nn::Module& model, const std::map<const nn::Parameter*, std::string>& owners) {
  for (const nn::UnitHandle& unit : nn::units(model))
    for (const auto& [layout, parameters, slices, reshards] : unit.parts()) {
      if (layout->shards == 1 && !nn::casts(*layout)) continue;
      for (const std::size_t i : indices(parameters)) {
        const UnitPiece& piece = layout->pieces[i];
        const std::int64_t bytes = numel(piece.shape) * byte_size(piece.full_dtype);
        ModuleMemory& row = rows.of(owners.at(parameters[i]));
        row.parameters.gathered += bytes;
        if (parameters[i]->requires_grad()) row.gradients.gathered += bytes;
      }
    }
}

/// A module of the tree that is printed.
struct Branch {
  std::string name;
  Amounts sum{};
  std::vector<std::unique_ptr<Branch>> children;

  Branch& child(const std::string& of) {
    for (const auto& c : children)
      if (c->name == of) return *c;
    return *children.emplace_back(std::make_unique<Branch>(Branch{.name = of, .children = {}}));
  }
  bool holds_as(const Branch& other) const {
    return sum == other.sum && std::ranges::equal(children, other.children, [](const auto& a, const auto& b) {
             return a->name == b->name && a->holds_as(*b);
           });
  }
  bool is_item() const {
    return !name.empty() && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  }
};

void add(Branch& root, const ModuleMemory& row) {
  const Amounts amounts = amounts_of(row);
  const auto count = [&amounts](Branch& node) {
    for (const std::size_t c : up_to(kColumns)) node.sum[c] += amounts[c];
  };
  Branch* node = &root;
  count(*node);
  for (const auto name : std::views::split(row.path, '.')) {
    node = &node->child({name.begin(), name.end()});
    count(*node);
  }
}

struct Line {
  std::string label;
  Amounts amounts;
};

void list(const Branch& node, const std::string& label, int depth, std::vector<Line>& lines) {
  lines.push_back({std::string(2 * static_cast<std::size_t>(depth), ' ') + label, node.sum});
  for (std::size_t i = 0; i < node.children.size();) {
    const Branch& first = *node.children[i];
    std::size_t end = i + 1;
    while (first.is_item() && end < node.children.size() && node.children[end]->is_item() &&
           node.children[end]->holds_as(first))
      ++end;
    const std::string name =
        end == i + 1 ? first.name : fmt::format("{}-{} each", first.name, node.children[end - 1]->name);
    list(first, name, depth + 1, lines);
    i = end;
  }
}

// An offloaded tensor has none.
std::int64_t bytes_in_memory(const Tensor& t) { return home_of(t) ? 0 : t.local().bytes(); }

}  // namespace

std::vector<ModuleMemory> module_memory(TrainStep& step, const MemoryLog::Picture& before_backward) {
  nn::Module& model = step.model();
  Rows rows(model);
  std::map<const nn::Parameter*, std::string> owners;
  std::map<std::string, std::string> owner_of_name;
  for (const auto& [path, parameter] : model.named_parameters()) {
    owners.emplace(parameter, module_of(path));
    owner_of_name.emplace(parameter->name(), module_of(path));
    ModuleMemory& row = rows.of(module_of(path));
    row.parameters.here += bytes_in_memory(parameter->sharded_value());
    if (parameter->grad().defined()) row.gradients.here += bytes_in_memory(parameter->grad());
  }
  for (const nn::OptimizerState& state : step.optimizer().state())
    rows.of(owner_of_name.at(state.parameter)).optimizer += bytes_in_memory(state.slot->value());
  add_gathered(rows, model, owners);
  for (const MemoryLog::Block& block : before_backward.blocks)
    if (block.category == MemoryCategory::activations && block.made.phase == StepPhase::forward && block.name.empty())
      rows.of(block.made.module == model.label() ? std::string() : block.made.module).saved += block.bytes;
  return rows.take();
}

std::string print_module_memory(const std::vector<ModuleMemory>& modules) {
  Branch root{.name = "", .children = {}};
  for (const ModuleMemory& row : modules) add(root, row);
  std::vector<Line> lines;
  list(root, "(model)", 0, lines);
  std::size_t width = std::string_view("module").size();
  for (const Line& line : lines) width = std::max(width, line.label.size());
  std::string text = fmt::format("{:<{}}", "module", width);
  for (const std::string_view title : kTitles) text += fmt::format("  {:>10}", title);
  text += "\n";
  for (const Line& line : lines) {
    text += fmt::format("{:<{}}", line.label, width);
    for (const std::size_t c : up_to(kColumns))
      text += fmt::format("  {:>{}}", line.amounts[c] == 0 ? "-" : format_bytes(line.amounts[c]),
                          std::max<std::size_t>(10, kTitles[c].size()));
    text += "\n";
  }
  return text;
}

}  // namespace sherd::train
