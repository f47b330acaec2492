#include "tools/table/sentences.h"
#include "runtime/tensor/indices.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace sherd::table {

namespace {

constexpr double kSmallChange = 0.005;

std::string percent(double now, double before) { return fmt::format("{:+.0f} %", 100 * (now / before - 1)); }

// "gathers 9 -> 5", of a number that has changed.
std::string change(std::string_view what, double before, double now, const std::string& before_text,
                   const std::string& now_text) {
  if (std::abs(now - before) <= kSmallChange * std::abs(before)) return "";
  const std::string by = before > 0 && now > 0 ? fmt::format(" ({})", percent(now, before)) : "";
  return fmt::format("{} {} -> {}{}", what, before_text, now_text, by);
}

std::string bytes_change(const Row& row, const Row& base, std::string_view key, std::string_view what) {
  const Cell &now = row.at(key), &before = base.at(key);
  if (!now.measured || !before.measured) return "";
  const auto text = [](double bytes) { return format_bytes(std::llround(bytes)); };
  return change(what, *before.measured, *now.measured, text(*before.measured), text(*now.measured));
}

std::string calls_change(const Row& row, const Row& base, std::string_view kind, std::string_view what) {
  const Cell &now = row.at(fmt::format("calls.{}", kind)), &before = base.at(fmt::format("calls.{}", kind));
  const Cell &now_bytes = row.at(fmt::format("bytes.{}", kind)), &before_bytes = base.at(fmt::format("bytes.{}", kind));
  if (!now.measured || !before.measured) return "";
  if (*now.measured == *before.measured && *now_bytes.measured == *before_bytes.measured) return "";
  const auto text = [](const Cell& calls, const Cell& bytes) {
    return fmt::format("{:.0f} of {}", *calls.measured, format_bytes(std::llround(*bytes.measured)));
  };
  return fmt::format("{} {} -> {}", what, text(before, before_bytes), text(now, now_bytes));
}

std::string times_change(const Row& row, const Row& base) {
  const Cell &now = row.at("tokens_per_second"), &before = base.at("tokens_per_second");
  if (!now.measured || !before.measured) return "";
  const auto value = [](const Row& of, std::string_view key) { return of.at(key).measured.value_or(0); };
  const double by = std::abs(value(row, "step_seconds") - value(base, "step_seconds"));
  const double noise = std::max(value(row, "step_spread_seconds"), value(base, "step_spread_seconds"));
  return fmt::format("waits {:.0f} -> {:.0f} ms for transfers, tokens/s {}",
                     1e3 * value(base, "exposed_transfer_seconds"), 1e3 * value(row, "exposed_transfer_seconds"),
                     by <= noise ? "within noise" : percent(*now.measured, *before.measured));
}

/// The category whose peak has changed most, which is where the peak of all together comes from.
std::string largest_change(const Row& row, const Row& base) {
  double most = 0;
  std::string text;
  for (const int c : up_to(kNumCategories)) {
    const auto category = name(static_cast<MemoryCategory>(c));
    const std::string key = fmt::format("memory_bytes.{}", category);
    const double by = std::abs(row.at(key).measured.value_or(0) - base.at(key).measured.value_or(0));
    if (by <= most) continue;
    most = by;
    text = bytes_change(row, base, key, category);
  }
  return text;
}

std::string default_sentence(const Row& row) {
  if (!row.at("memory_bytes.total").measured) return fmt::format("{}: {}.", row.name, row.why);
  return fmt::format("{}: {}. At the peak a rank holds {}; it issues {:.0f} gathers and {:.0f} reductions per step.",
                     row.name, row.why, format_bytes(std::llround(*row.at("memory_bytes.total").measured)),
                     *row.at("calls.all_gather").measured,
                     *row.at("calls.reduce_scatter").measured + *row.at("calls.all_reduce").measured);
}

bool is_counted(const Column& column) {
  return column.quantity == Quantity::bytes || column.quantity == Quantity::calls;
}

}  // namespace

std::string sentence_of(const Row& row, const Row& base) {
  if (!row.left_out.empty()) return fmt::format("{}: not run: {}.", row.name, row.left_out);
  if (!row.failure.empty()) {
    const auto& predicted = row.at("memory_bytes.total").predicted;
    return fmt::format(
        "{}: did not run: {}{}.", row.name, row.failure,
        predicted ? fmt::format("; ghost steps say that it holds {}", format_bytes(std::llround(*predicted))) : "");
  }
  if (&row == &base || !base.failure.empty()) return default_sentence(row);
  std::string changes;
  for (const std::string& part :
       {bytes_change(row, base, "memory_bytes.total", "peak"), largest_change(row, base),
        calls_change(row, base, "all_gather", "gathers"), calls_change(row, base, "reduce_scatter", "reduce-scatters"),
        calls_change(row, base, "all_reduce", "all-reduces"), times_change(row, base)})
    if (!part.empty()) changes += (changes.empty() ? "" : ", ") + part;
  return fmt::format("{}: {}{}{}.", row.name, row.why, changes.empty() ? "" : ": ", changes);
}

std::string verdict_of(const Table& table) {
  std::string unforeseen;
  int ranks = 0, numbers = 0;
  for (const Row& row : table.rows) {
    if (!row.has_run()) continue;
    for (const std::size_t r : indices(row.ranks)) {
      const RankBytes& rank = row.ranks[r];
      ++ranks;
      if (rank.measured != rank.predicted)
        unforeseen += fmt::format("\n  {}: rank {} holds at most {}, not {}", row.name, r, describe(rank.measured.peak),
                                  describe(rank.predicted.peak));
    }
    for (const std::size_t i : indices(columns())) {
      const Cell& cell = row.cells[i];
      if (!cell.predicted || !is_counted(columns()[i])) continue;
      ++numbers;
      if (cell.measured != cell.predicted)
        unforeseen += fmt::format("\n  {}: {} is {:.0f}, not {:.0f}", row.name, columns()[i].key, *cell.measured,
                                  *cell.predicted);
    }
  }
  if (!unforeseen.empty()) return "Ghost steps have predicted other numbers:" + unforeseen;
  return fmt::format(
      "Ghost steps have predicted the peaks of {} ranks to the byte, and all {} bytes and calls of rows.", ranks,
      numbers);
}

}  // namespace sherd::table
