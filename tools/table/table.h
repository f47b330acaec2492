#pragma once
// The table that settings of a training run are compared in: a row for each run, columns of what it holds, moves and
// takes. Every number may stand twice: measured by a run, and predicted.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/memory/accounting.h"

namespace sherd::table {

enum class Quantity : std::uint8_t { bytes, calls, seconds, rate };

/// Keys with a dot are numbers of a group: "memory_bytes.parameters".
struct Column {
  std::string_view key, title;
  Quantity quantity;
  bool in_text = true;
};
/// Memory of the rank that holds most: the peak of each category, in the order of MemoryCategory, and of all together;
/// collectives of a step as one rank issues them: calls, bytes of the full tensors; seconds of a step, and how far
/// apart its runs lie; how long a rank waits for transfers and for ranks that come later; tokens per second of all
/// ranks; MFU; state of a rank, and room that its peak leaves.
std::span<const Column> columns();
/// The place of a key. Error for an unknown one.
std::size_t column(std::string_view key);

struct Cell {
  std::optional<double> measured{}, predicted{};
};

/// Most bytes of one rank: the peak of each category, and of all together with what that is made of.
struct PeakBytes {
  CategoryBytes peak{}, at_peak{};
  std::int64_t total = 0;
  friend bool operator==(const PeakBytes&, const PeakBytes&) = default;
};
struct RankBytes {
  PeakBytes measured{}, predicted{};
};

/// What a rank sends over the links of one axis in a step.
struct AxisTraffic {
  std::string axis, fabric;
  double calls = 0, wire_bytes = 0, seconds = 0;
};

struct Row {
  std::string name{};  ///< what the run is called
  std::string knob{};  ///< the setting that it tries: neighbours of one stand together
  std::string why{};   ///< what the settings do: parts of sentences joined by "; "
  std::vector<std::pair<std::string, std::string>> settings{};  ///< strategy, recompute, ...: names and values
  std::string left_out{};                                       ///< why it is not run; else empty
  std::vector<Cell> cells = std::vector<Cell>(columns().size());
  std::vector<RankBytes> ranks{};  ///< of a row that has run, or was predicted
  std::vector<AxisTraffic> axes{};
  std::vector<double> rounds{};  ///< seconds of a step in each of its runs
  std::string failure{};         ///< why there is nothing measured; else empty
  std::string sentence{};        ///< the row in words

  bool has_run() const { return at("step_seconds").measured.has_value(); }
  Cell& at(std::string_view key) { return cells[column(key)]; }
  const Cell& at(std::string_view key) const { return cells[column(key)]; }
};

struct Table {
  std::vector<std::pair<std::string, std::string>> about{};  ///< the model, the ranks, the link: names and values
  std::vector<Row> rows{};
};

/// For people: what the table is about, each row with what was predicted below it, then the sentences.
std::string to_text(const Table& table);
/// One object per line: {"model", "ranks", ...}, then one for each row: its settings, every number by its column's key,
/// nested where that has a dot, and again with "predicted_" before the key where there is one; "ranks"
/// with "memory_bytes", "memory_at_peak_bytes" and the same predicted of each; "failure" and "sentence".
std::string to_json(const Table& table);
/// The line of one row.
std::string to_json(const Row& row);

/// An object with a number for each category.
nlohmann::json by_category(const CategoryBytes& bytes);

}  // namespace sherd::table
