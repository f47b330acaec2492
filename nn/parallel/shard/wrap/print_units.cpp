#include "nn/parallel/shard/wrap/print_units.h"

#include <algorithm>
#include <array>
#include <limits>

#include "nn/parallel/shard/unit/unit_layout.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/shard_keeper.h"
#include "runtime/memory/accounting.h"
#include "runtime/op/copy/offload.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

constexpr std::size_t kColumns = 8;
using Cells = std::array<std::string, kColumns>;
constexpr std::array<bool, kColumns> kAlignsRight{false, true, true, true, false, false, false, false};

/// Lines of cells in columns, and lines of text between them.
class Table {
 public:
  void row(Cells cells) {
    for (const std::size_t c : up_to(kColumns)) widths_[c] = std::max(widths_[c], cells[c].size());
    lines_.push_back({std::move(cells), {}});
  }
  void text(std::string line) { lines_.push_back({{}, std::move(line)}); }
  std::string print() const {
    std::string out;
    for (const Line& line : lines_) {
      std::string text = line.text;
      if (text.empty()) text = cells_of(line.cells);
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + "\n";
    }
    return out;
  }

 private:
  struct Line {
    Cells cells;
    std::string text;
  };
  std::string cells_of(const Cells& cells) const {
    std::string text;
    for (const std::size_t c : up_to(kColumns)) {
      const std::string padding(widths_[c] - cells[c].size(), ' ');
      text += (c == 0 ? "" : "  ") + (kAlignsRight[c] ? padding + cells[c] : cells[c] + padding);
    }
    return text;
  }
  std::vector<Line> lines_;
  std::array<std::size_t, kColumns> widths_{};
};

// Each once, in order.
void add_once(std::vector<std::string>& texts, std::string text) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
}

std::string joined(const std::vector<std::string>& texts) {
  std::string result;
  for (const std::string& text : texts) result += (result.empty() ? "" : ", ") + text;
  return result;
}

std::string types(const UnitLayout& layout) {
  std::vector<std::string> texts;
  for (const UnitPiece& p : layout.pieces)
    add_once(texts, p.full_dtype == p.dtype ? std::string(name(p.dtype))
                                            : fmt::format("{} as {}", name(p.dtype), name(p.full_dtype)));
  return joined(texts);
}

std::string wires(const UnitLayout& layout) {
  std::vector<std::string> texts;
  for (const UnitPiece& p : layout.pieces) add_once(texts, std::string(name(p.wire)));
  return joined(texts);
}

std::string ranks(const UnitLayout& layout) {
  const std::string shards = fmt::format("{} shard{}", layout.shards, layout.shards == 1 ? "" : "s");
  if (layout.replicas == 1) return shards;
  const std::string replicas = fmt::format("{} replicas", layout.replicas);
  return layout.shards == 1 ? replicas : shards + " x " + replicas;
}

std::vector<UnitHandle> units_as_they_ran(Module& model) {
  const Units found = units(model);
  std::vector<UnitHandle> all(found.begin(), found.end());
  std::ranges::stable_sort(all, {}, [](const UnitHandle& unit) {
    const std::vector<int> places = unit.order_in_forward();
    return places.empty() ? std::numeric_limits<int>::max() : places.front();
  });
  return all;
}

std::string order(const UnitHandle& unit) {
  std::vector<std::string> places;
  for (const int place : unit.order_in_forward()) places.push_back(std::to_string(place));
  return places.empty() ? "-" : joined(places);
}

std::string line_of(const Parameter& p) {
  const bool is_merged = p.sharded_value().shape() != p.shape();
  return fmt::format("  {}  {}{}{}", p.name(), describe(p.sharded_value()),
                     is_merged ? fmt::format(" of {}", p.shape()) : "", p.requires_grad() ? "" : "  frozen");
}

}  // namespace

std::string print_units(Module& model, const Units::Lines& lines) {
  Table table;
  table.row({"unit", "ran", "gathered", "on this rank", "of", "type", "reduced in", "after forward"});
  std::int64_t gathered = 0, here = 0, count = 0;
  for (const UnitHandle& unit : units_as_they_ran(model)) {
    std::size_t at = 0;
    for (const auto& [layout, parameters, slices, reshards] : unit.parts()) {
      const bool is_offloaded = !parameters.empty() && home_of(parameters[0]->sharded_value());
      const bool is_gathered =
          layout->shards > 1 || casts(*layout) || is_offloaded;  // else shards are the full tensors
      if (is_gathered) gathered += layout->full_bytes;
      here += layout->shard_bytes;
      ++count;
      table.row({layout->name, order(unit), is_gathered ? format_bytes(layout->full_bytes) : "-",
                 format_bytes(layout->shard_bytes) + (is_offloaded ? " offloaded" : ""), ranks(*layout), types(*layout),
                 wires(*layout),
                 !is_gathered ? "stays"
                 : slices > 0 ? fmt::format("reshard to {}", slices)
                 : reshards   ? "reshard"
                              : "keep"});
      for (const Parameter* p : parameters)
        if (lines.parameters) table.text(line_of(*p));
      if (lines.routes)
        for (const std::string& route : unit.routes(at++)) table.text("  " + route);
    }
  }
  std::int64_t num_ignored = 0, ignored_bytes = 0;
  for (const Parameter* p : model.parameters()) {
    if (ShardKeeper::of(*p)) continue;
    if (num_ignored++ == 0) table.text("in no unit");
    const Tensor local = p->value().local();
    ignored_bytes += local.bytes();
    table.text(line_of(*p));
  }
  table.text(fmt::format("{} unit{}: {} gathered if all are, {} of shards on this rank", count, count == 1 ? "" : "s",
                         format_bytes(gathered), format_bytes(here)));
  if (num_ignored > 0)
    table.text(fmt::format("{} parameter{} in no unit: {} on this rank, {} gradients are not reduced by units",
                           num_ignored, num_ignored == 1 ? "" : "s", format_bytes(ignored_bytes),
                           num_ignored == 1 ? "its" : "their"));
  return table.print();
}

}  // namespace sherd::nn
