#include "tools/plan/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "runtime/comm/group/collective.h"

namespace sherd::plan {

namespace {

using table::Row;

constexpr double kGB = 1e9;

std::string digits(double value) {
  const double size = std::abs(value);
  return value == 0 ? "0" : fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/// One column of the text: its title, and what stands in it, of a row with a forecast.
struct TextColumn {
  std::string title;
  std::function<std::string(const Row&)> text;
};

std::string cell(const Row& row, std::string_view key, double unit) {
  const auto& value = row.at(key).predicted;
  return value ? digits(*value / unit) : "-";
}

double wire_bytes(const Row& row, std::string_view fabric) {
  double bytes = 0;
  for (const table::AxisTraffic& axis : row.axes)
    if (axis.fabric == fabric) bytes += axis.wire_bytes;
  return bytes;
}

std::vector<TextColumn> text_columns(const Report& report, const PlannedFor& planned) {
  std::vector<TextColumn> columns;
  const auto number = [&columns](std::string title, std::string_view key, double unit) {
    columns.push_back({std::move(title), [key, unit](const Row& row) { return cell(row, key, unit); }});
  };
  number("params", "memory_bytes.parameters", kGB);
  number("gathered", "memory_bytes.unsharded", kGB);
  number("grads", "memory_bytes.gradients", kGB);
  number("optim", "memory_bytes.optimizer", kGB);
  number("activ", "memory_bytes.activations", kGB);
  number("comm", "memory_bytes.communication", kGB);
  number("peak", "memory_bytes.total", kGB);
  if (planned.memory_limit > 0) number("room", "memory_bytes.room", kGB);
  if (!planned.cluster) return columns;
  number("step ms", "step_seconds", 1e-3);
  number("tokens/s", "tokens_per_second", 1);
  number("MFU %", "mfu", 0.01);
  number("exposed", "exposed_transfer_seconds", 1e-3);
  std::vector<std::string> fabrics;
  for (const Row& row : report.table.rows)
    for (const table::AxisTraffic& axis : row.axes)
      if (axis.wire_bytes > 0 && std::ranges::find(fabrics, axis.fabric) == fabrics.end())
        fabrics.push_back(axis.fabric);
  for (const std::string& fabric : fabrics)
    columns.push_back({"GB " + fabric, [fabric](const Row& row) { return digits(wire_bytes(row, fabric) / kGB); }});
  columns.push_back({"busiest link", [](const Row& row) -> std::string {
                       const auto most = std::ranges::max_element(row.axes, {}, &table::AxisTraffic::seconds);
                       return most == row.axes.end() ? "-" : fmt::format("{} {}", most->axis, most->fabric);
                     }});
  return columns;
}

std::string table_text(const Report& report, const PlannedFor& planned) {
  const std::vector<TextColumn> columns = text_columns(report, planned);
  std::vector<std::vector<std::string>> cells(report.table.rows.size() + 1);
  std::vector<std::size_t> widths;
  for (const TextColumn& column : columns) {
    cells[0].push_back(column.title);
    std::size_t width = column.title.size();
    for (std::size_t i = 0; i < report.table.rows.size(); ++i) {
      const Row& row = report.table.rows[i];
      cells[i + 1].push_back(row.left_out.empty() ? column.text(row) : "-");
      width = std::max(width, cells[i + 1].back().size());
    }
    widths.push_back(width);
  }
  constexpr std::string_view kTitle = "memory of a rank in GB, times in ms";
  std::size_t name_width = kTitle.size();
  for (const Row& row : report.table.rows) name_width = std::max(name_width, row.name.size());
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += fmt::format("{:<{}}", i == 0 ? kTitle : report.table.rows[i - 1].name, name_width);
    for (std::size_t c = 0; c < columns.size(); ++c) text += fmt::format("  {:>{}}", cells[i][c], widths[c]);
    text += fmt::format("  {}\n", i == 0                                      ? "peak at"
                                  : report.table.rows[i - 1].left_out.empty() ? report.peaks[i - 1]
                                                                              : report.table.rows[i - 1].left_out);
  }
  return text;
}

/// Its collectives, by the columns of both.
constexpr comm::CommOp kCounted[] = {comm::CommOp::all_gather, comm::CommOp::reduce_scatter, comm::CommOp::all_reduce};

void fill_collectives(Row& row, const nn::Prediction& memory) {
  const auto at = [&row](std::string_view of, comm::CommOp op) -> std::optional<double>& {
    return row.at(fmt::format("{}.{}", of, name(op))).predicted;
  };
  for (const comm::CommOp op : kCounted) at("calls", op) = at("bytes", op) = 0;
  for (const CommCounter::Entry& entry : memory.issued)
    if (std::ranges::count(kCounted, entry.kind) > 0) {
      *at("calls", entry.kind) += static_cast<double>(entry.item.calls);
      *at("bytes", entry.kind) += static_cast<double>(entry.item.bytes);
    }
}

}  // namespace

std::string moment_text(const MemoryLog::Moment& moment) {
  std::string text(name(moment.phase));
  if (!moment.module.empty()) text += ", " + moment.module;
  if (!moment.op.empty()) text += ", " + moment.op;
  return text;
}

Row row_of(const Option& option, const PlannedFor& planned, const ModelSize& size) {
  Row row{.name = option.name, .knob = "plan", .why = option.why, .left_out = option.left_out};
  const nn::TrainingPlan& plan = option.config.plan;
  row.settings = {{"strategy", plan.strategy.text()},
                  {"reshard_after_forward", plan.reshard_after_forward.text()},
                  {"recompute", plan.recompute.text()},
                  {"mesh", plan.mesh.text()}};
  row.sentence = option.why;
  if (!option.has_forecast()) return row;
  const nn::Prediction& memory = option.forecast.memory;
  row.ranks.push_back({.predicted = {memory.peak, memory.at_peak, memory.bytes}});
  for (int c = 0; c < kNumCategories; ++c)
    row.at(fmt::format("memory_bytes.{}", name(static_cast<MemoryCategory>(c)))).predicted =
        static_cast<double>(memory.peak[static_cast<std::size_t>(c)]);
  row.at("memory_bytes.total").predicted = static_cast<double>(memory.bytes);
  row.at("memory_bytes.state").predicted = static_cast<double>(option.forecast.state);
  if (planned.memory_limit > 0)
    row.at("memory_bytes.room").predicted = static_cast<double>(planned.memory_limit - memory.bytes);
  fill_collectives(row, memory);
  if (!option.simulated) return row;
  const Simulation& simulated = *option.simulated;
  row.at("step_seconds").predicted = simulated.seconds;
  row.at("tokens_per_second").predicted = static_cast<double>(step_tokens(option.config)) / simulated.seconds;
  row.at("mfu").predicted = mfu_of(size.flops, simulated.seconds, planned);
  row.at("exposed_transfer_seconds").predicted = simulated.of(0).transfer + simulated.of(0).throttle;
  for (const Simulation::Part& axis : simulated.axes)
    row.axes.push_back({axis.name, axis.fabric, axis.calls, axis.wire_bytes, axis.seconds});
  return row;
}

std::vector<std::string> assumptions(const std::vector<Option>& options, const PlannedFor& planned) {
  std::vector<std::string> lines{
      "memory: tensors of rank 0 in the first steps of a ghost, to the byte; what a driver, NCCL and kernels keep is "
      "not "
      "in "
      "it"};
  if (!planned.cluster) return lines;
  const Cluster& cluster = *planned.cluster;
  const std::string_view made = !cluster.measured.rows.empty() ? ""
                                : cluster.software == 1 ? "; not calibrated here, and kernels as fast as these rates"
                                                        : "; not calibrated here";
  lines.push_back(fmt::format("device {}: {}{}", cluster.device.name, cluster.device.source, made));
  if (cluster.software != 1)
    lines.push_back(fmt::format("software: compute takes {:.3f} times as long", cluster.software));
  if (planned.ranks > 1 && cluster.axes.empty()) {
    lines.push_back(fmt::format("in a host {}: {}", cluster.in.name, cluster.in.source));
    if (cluster.out) lines.push_back(fmt::format("between hosts {}: {}", cluster.out->name, cluster.out->source));
  }
  if (std::ranges::any_of(options, [](const Option& o) { return o.simulated && o.simulated->is_extrapolated; }))
    lines.emplace_back("extrapolated: calls lie outside of the sizes that were measured");
  lines.push_back(fmt::format("differences within {:.0f} % are called ties; no row has been run", 100 * kTie));
  return lines;
}

std::string to_text(const Report& report, const PlannedFor& planned) {
  std::string text;
  for (const std::string& sentence : report.answer) text += sentence + "\n";
  if (!report.flips.empty()) text += "\nAnother row wins\n";
  for (const std::string& flip : report.flips) text += "  " + flip + "\n";
  if (!report.searched.empty()) text += "\nSearched\n";
  for (const std::string& line : report.searched) text += "  " + line + "\n";
  text += "\n";
  for (const auto& [key, value] : report.about) text += fmt::format("{:<8} {}\n", key, value);
  text += "\n" + table_text(report, planned) + "\nAssumed\n";
  for (const std::string& line : report.assumed) text += "  " + line + "\n";
  return text;
}

std::string to_json(const Report& report) {
  nlohmann::ordered_json about = nlohmann::ordered_json::object();
  for (const auto& [key, value] : report.about) about[key] = value;
  about["answer"] = report.answer;
  about["flips"] = report.flips;
  if (!report.searched.empty()) about["searched"] = report.searched;
  about["assumed"] = report.assumed;
  std::string text = about.dump() + "\n";
  for (const Row& row : report.table.rows) text += table::to_json(row);
  return text;
}

}  // namespace sherd::plan
