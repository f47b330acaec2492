#include "tools/table/table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::table {

namespace {

constexpr std::array kColumns{
    Column{"memory_bytes.parameters", "params", Quantity::bytes},
    Column{"memory_bytes.unsharded", "gathered", Quantity::bytes},
    Column{"memory_bytes.gradients", "grads", Quantity::bytes},
    Column{"memory_bytes.optimizer", "optim", Quantity::bytes},
    Column{"memory_bytes.activations", "activ", Quantity::bytes},
    Column{"memory_bytes.communication", "comm", Quantity::bytes},
    Column{"memory_bytes.workspace", "work", Quantity::bytes, false},
    Column{"memory_bytes.total", "peak", Quantity::bytes},
    Column{"calls.all_gather", "gath", Quantity::calls},
    Column{"bytes.all_gather", "MB", Quantity::bytes},
    Column{"calls.reduce_scatter", "r-sc", Quantity::calls},
    Column{"bytes.reduce_scatter", "MB", Quantity::bytes},
    Column{"calls.all_reduce", "a-red", Quantity::calls},
    Column{"bytes.all_reduce", "MB", Quantity::bytes},
    Column{"step_seconds", "step", Quantity::seconds},
    Column{"step_spread_seconds", "spread", Quantity::seconds},
    Column{"exposed_transfer_seconds", "exposed", Quantity::seconds},
    Column{"exposed_skew_seconds", "skew", Quantity::seconds},
    Column{"tokens_per_second", "tokens/s", Quantity::rate},
    Column{"mfu", "MFU", Quantity::rate, false},
    Column{"memory_bytes.state", "state", Quantity::bytes, false},
    Column{"memory_bytes.room", "room", Quantity::bytes, false},
};
constexpr std::size_t kNameWidth = 28;
constexpr double kMegabyte = 1e6;

// Three digits at least; bytes in MB, seconds in ms.
std::string number(const std::optional<double>& value, Quantity quantity) {
  if (!value) return "-";
  const auto decimal = [](double x) {
    return x == 0 || std::abs(x) >= 99.95 ? fmt::format("{:.0f}", x)
                                          : fmt::format("{:.{}f}", x, std::abs(x) < 9.995 ? 2 : 1);
  };
  switch (quantity) {
    case Quantity::bytes: return decimal(*value / kMegabyte);
    case Quantity::seconds: return decimal(*value * 1e3);
    case Quantity::calls:
    case Quantity::rate: return fmt::format("{:.0f}", *value);
  }
  return "";
}

int width(const Column& column) { return std::max<int>(6, static_cast<int>(column.title.size())) + 1; }

std::string line(const std::string& name, const Row* row, std::optional<double> Cell::* which) {
  std::string text = fmt::format("{:<{}}", name, kNameWidth);
  for (const std::size_t i : indices(kColumns))
    if (kColumns[i].in_text)
      text += fmt::format("{:>{}}",
                          row ? number(row->cells[i].*which, kColumns[i].quantity) : std::string(kColumns[i].title),
                          width(kColumns[i]));
  return text + "\n";
}

// Above the titles: what the columns are about, over the first to the last of a group.
std::string group_line() {
  struct Group {
    std::string_view starts_with, title;
  };
  constexpr std::array kGroups{Group{"memory_bytes", "memory per rank, MB"}, Group{"calls", "per step: calls and MB"},
                               Group{"step_seconds", "times, ms"}};
  std::string text(kNameWidth, ' ');
  std::size_t end = kNameWidth;
  for (const Column& column : kColumns) {
    if (!column.in_text) continue;
    for (const Group& group : kGroups)
      if (column.key.starts_with(group.starts_with) && text.find(group.title) == std::string::npos) {
        text.resize(end + 1, ' ');
        text += group.title;
      }
    end += static_cast<std::size_t>(width(column));
  }
  return text + "\n";
}

// What a rank sends over the links of each axis: "dp 57.3 (138 ms), replicate 9.64 (46 ms)".
std::string axes_text(const Table& table) {
  std::string text;
  for (const Row& row : table.rows) {
    std::string axes;
    for (const AxisTraffic& axis : row.axes)
      axes += fmt::format("{}{} {} ({} ms)", axes.empty() ? "" : ", ", axis.axis,
                          number(axis.wire_bytes, Quantity::bytes), number(axis.seconds, Quantity::seconds));
    if (!axes.empty()) text += fmt::format("{:<{}} {}\n", row.name, kNameWidth, axes);
  }
  return text.empty() ? "" : "a rank sends per step, MB by axis (and how long that takes)\n" + text + "\n";
}

bool is_predicted(const Row& row) {
  return std::ranges::any_of(row.cells, [](const Cell& cell) { return cell.predicted.has_value(); });
}

using nlohmann::ordered_json;

ordered_json& place(ordered_json& object, std::string_view prefix, std::string_view key) {
  const std::size_t dot = key.find('.');
  ordered_json& outer = object[fmt::format("{}{}", prefix, key.substr(0, dot))];
  return dot == std::string_view::npos ? outer : outer[std::string(key.substr(dot + 1))];
}

ordered_json value_of(double value, Quantity quantity) {
  if (quantity == Quantity::bytes || quantity == Quantity::calls) return std::llround(value);
  return value;
}

void put(ordered_json& object, std::string_view prefix, const PeakBytes& bytes) {
  ordered_json& peaks = object[fmt::format("{}memory_bytes", prefix)];
  peaks = by_category(bytes.peak);
  peaks["total"] = bytes.total;
  object[fmt::format("{}memory_at_peak_bytes", prefix)] = by_category(bytes.at_peak);
}

ordered_json json_of(const AxisTraffic& axis) {
  return {{"axis", axis.axis},
          {"fabric", axis.fabric},
          {"calls", axis.calls},
          {"wire_bytes", value_of(axis.wire_bytes, Quantity::bytes)},
          {"seconds", axis.seconds}};
}

ordered_json json_of(const Row& row) {
  ordered_json object = {{"name", row.name}, {"knob", row.knob}};
  for (const auto& [key, value] : row.settings) object[key] = value;
  for (const auto& [prefix, which] : {std::pair("", &Cell::measured), {"predicted_", &Cell::predicted}})
    for (const std::size_t i : indices(kColumns))
      if (const auto& value = row.cells[i].*which)
        place(object, prefix, kColumns[i].key) = value_of(*value, kColumns[i].quantity);
  for (const RankBytes& rank : row.ranks) {
    ordered_json& own = object["ranks"].emplace_back();
    if (row.has_run()) put(own, "", rank.measured);
    put(own, "predicted_", rank.predicted);
  }
  for (const AxisTraffic& axis : row.axes) object["axes"].push_back(json_of(axis));
  if (!row.left_out.empty()) object["left_out"] = row.left_out;
  if (!row.failure.empty()) object["failure"] = row.failure;
  object["sentence"] = row.sentence;
  return object;
}

}  // namespace

std::span<const Column> columns() { return kColumns; }

std::size_t column(std::string_view key) {
  const auto* const found = std::ranges::find(kColumns, key, &Column::key);
  check(found != kColumns.end(), "a table of runs has no column \"{}\"", key);
  return static_cast<std::size_t>(found - kColumns.begin());
}

std::string to_text(const Table& table) {
  std::string text;
  for (const auto& [key, value] : table.about) text += fmt::format("{:<9} {}\n", key, value);
  text += "\n" + group_line() + line("", nullptr, {});
  std::string_view knob;
  for (const Row& row : table.rows) {
    if (row.knob != knob) text += "\n";
    knob = row.knob;
    text += line(row.name, &row, &Cell::measured);
    if (is_predicted(row)) text += line("  predicted", &row, &Cell::predicted);
  }
  text += "\n" + axes_text(table);
  for (const Row& row : table.rows) text += row.sentence + "\n";
  return text;
}

std::string to_json(const Table& table) {
  ordered_json about = ordered_json::object();
  for (const auto& [key, value] : table.about) about[key] = value;
  std::string text = about.dump() + "\n";
  for (const Row& row : table.rows) text += to_json(row);
  return text;
}

std::string to_json(const Row& row) { return json_of(row).dump() + "\n"; }

nlohmann::json by_category(const CategoryBytes& bytes) {
  nlohmann::json result;
  for (const int c : up_to(kNumCategories))
    result[std::string(name(static_cast<MemoryCategory>(c)))] = bytes[static_cast<std::size_t>(c)];
  return result;
}

}  // namespace sherd::table
