// Three panels of bars beside the rows' names. Lengths are of the largest number in a panel.
#include "tools/table/chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "runtime/tensor/indices.h"
#include "tools/table/svg.h"

namespace sherd::table {

namespace {

constexpr int kNames = 250, kTop = 68, kRow = 26, kBar = 16, kGap = 40, kMargin = 16, kLine = 16;

struct Panel {
  std::string_view title, key;
  int width;
  double unit;  ///< divides numbers for people
  int left = 0;
};

std::string bar(double x, double y, double width, std::string_view color, const std::string& tip) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>\n", x, y,
      width, kBar, color, escaped(tip));
}

/// The rank that holds most; a plan that has not run is drawn as predicted.
const PeakBytes* fullest(const Row& row) {
  const PeakBytes* most = nullptr;
  for (const RankBytes& rank : row.ranks) {
    const PeakBytes& bytes = row.has_run() ? rank.measured : rank.predicted;
    if (!most || bytes.total > most->total) most = &bytes;
  }
  return most;
}

double value_of(const Row& row, const Panel& panel) {
  if (panel.key.empty()) return fullest(row) ? static_cast<double>(fullest(row)->total) : 0;
  const Cell& cell = row.at(panel.key);
  return (row.has_run() ? cell.measured : cell.predicted).value_or(0);
}

std::string stack(const Row& row, const Panel& panel, double y, double scale) {
  std::string text;
  double x = panel.left;
  const PeakBytes& bytes = *fullest(row);
  for (const int c : up_to(kNumCategories)) {
    const std::int64_t part = bytes.at_peak[static_cast<std::size_t>(c)];
    if (part == 0) continue;
    const double width = static_cast<double>(part) * scale;
    text += bar(x, y, width, color_of(static_cast<MemoryCategory>(c)),
                fmt::format("{}: {} {}", row.name, name(static_cast<MemoryCategory>(c)), format_bytes(part)));
    x += width;
  }
  return text;
}

std::string row_of(const Row& row, const Panel& panel, double y, double scale) {
  const double value = value_of(row, panel);
  if (value == 0 && !row.has_run()) return "";
  std::string text = panel.key.empty()
                         ? stack(row, panel, y, scale)
                         : bar(panel.left, y, value * scale, "#4a4a4a", fmt::format("{}: {}", row.name, panel.title));
  if (!panel.key.empty() && row.has_run() && row.at(panel.key).predicted) {
    const double x = panel.left + std::min<double>(*row.at(panel.key).predicted * scale, panel.width);
    text += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#d62728\" stroke-width=\"2\"/>\n",
        x, y - 2, y + kBar + 2);
  }
  return text + text_at(panel.left + value * scale + 5, y + kBar - 4,
                        fmt::format("{:.{}f}", value / panel.unit, value / panel.unit < 99.95 ? 1 : 0), "class=\"n\"");
}

std::string legend() {
  std::string text;
  double x = kNames;
  for (const int c : up_to(kNumCategories)) {
    const std::string_view category = name(static_cast<MemoryCategory>(c));
    text += fmt::format("<rect x=\"{}\" y=\"16\" width=\"11\" height=\"11\" fill=\"{}\"/>\n", x,
                        color_of(static_cast<MemoryCategory>(c)));
    text += text_at(x + 15, 26, category);
    x += 30 + 6.6 * static_cast<double>(category.size());
  }
  return text +
         fmt::format("<line x1=\"{0}\" x2=\"{0}\" y1=\"14\" y2=\"29\" stroke=\"#d62728\" stroke-width=\"2\"/>\n", x) +
         text_at(x + 6, 26, "what was predicted");
}

}  // namespace

std::string to_svg(const Table& table) {
  std::array panels{Panel{"memory of the fullest rank at its peak, MB", "", 460, 1e6},
                    Panel{"waiting for transfers, ms", "exposed_transfer_seconds", 150, 1e-3},
                    Panel{"tokens per second", "tokens_per_second", 150, 1}};
  int right = kNames;
  for (Panel& panel : panels) {
    panel.left = right;
    right += panel.width + 60 + kGap;
  }
  const int about_top = kTop + kRow * static_cast<int>(table.rows.size()) + kMargin;
  const int height = about_top + kLine * static_cast<int>(table.about.size()) + kMargin;
  std::string text;
  text += legend();
  for (const Panel& panel : panels) {
    double most = 0;
    for (const Row& row : table.rows) most = std::max(most, value_of(row, panel));
    const double scale = most > 0 ? panel.width / most : 0;
    text += text_at(panel.left, kTop - 12, panel.title, "class=\"t\"");
    double y = kTop;
    for (const Row& row : table.rows) {
      text += row_of(row, panel, y, scale);
      y += kRow;
    }
  }
  double y = kTop;
  for (const Row& row : table.rows) {
    text += text_at(kNames - 10, y + kBar - 4, row.has_run() || fullest(row) ? row.name : row.name + ": not run",
                    "text-anchor=\"end\"");
    if (!row.failure.empty()) text += text_at(panels[1].left, y + kBar - 4, "did not run", "class=\"n\"");
    y += kRow;
  }
  double about = about_top;
  for (const auto& [key, value] : table.about)
    text += text_at(kMargin, about += kLine, fmt::format("{}: {}", key, value), "class=\"n\"");
  return document(right - kGap + kMargin, height, text);
}

}  // namespace sherd::table
