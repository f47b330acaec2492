#include "tools/plan/published.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tools/plan/cluster_flags.h"
#include "tools/plan/planner.h"
#include "tools/plan/presets.h"
#include "tools/train/exit_status.h"
#include "tools/train/toml_values.h"

namespace sherd::plan {

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

/// A row of the file: a config, what it ran on, and what it gave.
struct PublishedRow {
  std::string name{}, config_path{}, source{};
  TrainConfig config{};
  ClusterFlags cluster{};
  double tokens_per_second = 0;  ///< of a rank
  double memory_gib = 0;         ///< 0: not published
};

/// The keys of a row: those of a config, and these.
ConfigTable bind_row(PublishedRow& row) {
  ConfigTable table = bind(row.config);
  table.add("config", &row.config_path, "config file, relative to this one");
  table.add("sequence", &row.config.model.sequence, "as model.sequence");
  table.add("device_model", &row.cluster.device_model, "as --device-model");
  table.add("software", &row.cluster.software, "as --software");
  table.add("fabric", &row.cluster.fabric, "as --fabric");
  table.add("hosts", &row.cluster.hosts, "as --hosts");
  table.add("per_host", &row.cluster.per_host, "as --per-host");
  table.add("tokens_per_second_per_rank", &row.tokens_per_second, "what was published");
  table.add("memory_gib", &row.memory_gib, "what was published, in GiB");
  table.add("source", &row.source, "where");
  return table;
}

/// The values of a file by row, in its order.
struct PublishedFile {
  std::vector<TomlValue> shared;
  std::vector<std::pair<std::string, std::vector<TomlValue>>> rows;
  std::vector<std::pair<std::string, std::string>> not_covered;
};

PublishedFile read_published(const std::string& path) {
  PublishedFile file;
  for (TomlValue& value : read_toml_values(path)) {
    const auto after = [&value](std::string_view prefix) { return value.key.substr(prefix.size()); };
    if (value.key.starts_with("not_covered.")) {
      file.not_covered.emplace_back(after("not_covered."),
                                    std::visit([](const auto& v) { return fmt::format("{}", v); }, value.value));
    } else if (value.key.starts_with("row.")) {
      const std::string rest = after("row.");
      const std::size_t dot = rest.find('.');
      check_usage(dot != rest.npos, "{}: {} must be a table, as [row.NAME]", value.where, value.key);
      const std::string name = rest.substr(0, dot);
      if (file.rows.empty() || file.rows.back().first != name) file.rows.emplace_back(name, std::vector<TomlValue>{});
      value.key = rest.substr(dot + 1);
      file.rows.back().second.push_back(std::move(value));
    } else {
      file.shared.push_back(std::move(value));
    }
  }
  check_usage(!file.rows.empty(), "{}: there is no row; a row begins with [row.NAME]", path);
  return file;
}

PublishedRow read_row(const PublishedFile& file, std::size_t index, const std::string& path) {
  PublishedRow row{.name = file.rows[index].first};
  ConfigTable table = bind_row(row);
  const auto set = [&](const std::vector<TomlValue>& values, bool is_path) {
    for (const TomlValue& value : values)
      if ((value.key == "config") == is_path) table.set(value.key, value.value, value.where);
  };
  as_usage([&] {
    set(file.shared, true), set(file.rows[index].second, true);
    check(!row.config_path.empty(), "{}: row {} names no config", path, row.name);
    ConfigTable of_file = bind(row.config);
    load_toml_file(of_file, (std::filesystem::path(path).parent_path() / row.config_path).string());
    set(file.shared, false), set(file.rows[index].second, false);
    check(row.tokens_per_second > 0, "{}: row {} has tokens_per_second_per_rank = {}; it must be positive", path,
          row.name, row.tokens_per_second);
    check(!row.cluster.device_model.empty(), "{}: row {} names no device_model", path, row.name);
    check(!row.config.plan.mesh.is_open(), "{}: row {} names no mesh", path, row.name);
    if (row.config.model.positions > 0)
      row.config.model.positions = std::max(row.config.model.positions, row.config.model.sequence);
    resolve(row.config);
  });
  return row;
}

/// What is predicted of a row.
struct Predicted {
  double tokens_per_second = 0, bytes = 0;
  double factor = 1, fitted = 0;  ///< of compute: the one that was used; the one at which the row would come out
  std::string note{};
};

double seconds_at(const Forecast& forecast, Cluster cluster, double factor) {
  cluster.software = factor;
  return simulate(forecast.step, cluster).seconds;
}

/// The factor with which a step takes so long; 0 if none does.
double fitted_factor(const Forecast& forecast, const Cluster& cluster, double seconds) {
  double low = 1e-3, high = 1e3;
  if (seconds_at(forecast, cluster, low) > seconds) return 0;
  while (high / low > 1 + 1e-6) {
    const double middle = std::sqrt(low * high);
    (seconds_at(forecast, cluster, middle) > seconds ? high : low) = middle;
  }
  return low;
}

Predicted predicted(const PublishedRow& row) {
  const int ranks = static_cast<int>(row.config.plan.mesh.count(1));
  ClusterFlags flags = row.cluster;
  const DeviceModel device = find_priced_device(flags.device_model, "device_model").device;
  Predicted result;
  if (!device.software.contains(flags.software)) {
    result.note = flags.software.empty() ? "no software is named" : "no factor of " + flags.software;
    flags.software.clear();
  }
  const std::optional<Cluster> cluster = cluster_of(flags, ranks, row.config.link);
  TrainConfig config = row.config;
  if (is_preset_device(flags.device_model)) config.plan.device = Device::cuda(0);
  const Forecast made = forecast(config, ranks, planned_vocabulary(config));
  const auto tokens = static_cast<double>(step_tokens(row.config)) / ranks;
  result.factor = cluster->software;
  result.tokens_per_second = tokens / seconds_at(made, *cluster, cluster->software);
  result.fitted = fitted_factor(made, *cluster, tokens / row.tokens_per_second);
  result.bytes = static_cast<double>(made.memory.bytes);
  if (const auto found = device.software.find(flags.software);
      found != device.software.end() && found->second.source.ends_with("row " + row.name))
    result.note = "fitted on this row";
  return result;
}

}  // namespace

std::string published_text(const std::string& path) {
  const PublishedFile file = read_published(path);
  std::string text = fmt::format("{:<24} {:>10} {:>10} {:>8} {:>8} {:>8}  {:>9} {:>9}\n", "tokens/s of a rank",
                                 "published", "predicted", "error", "factor", "fits at", "GiB", "predicted");
  std::vector<double> errors;
  for (std::size_t i = 0; i < file.rows.size(); ++i) {
    const PublishedRow row = read_row(file, i, path);
    const Predicted own = predicted(row);
    const double error = own.tokens_per_second / row.tokens_per_second - 1;
    if (own.note.empty()) errors.push_back(std::abs(error));
    text += fmt::format("{:<24} {:>10.0f} {:>10.0f} {:>+7.1f}% {:>8.3f} {:>8.3f}  {:>9} {:>9.1f}  {}\n", row.name,
                        row.tokens_per_second, own.tokens_per_second, 100 * error, own.factor, own.fitted,
                        row.memory_gib > 0 ? fmt::format("{:.1f}", row.memory_gib) : "-", own.bytes / kGiB, own.note);
  }
  std::ranges::sort(errors);
  if (!errors.empty())
    text += fmt::format("\n{} rows with a factor that was fitted elsewhere: {} within 10 %, worst {:.1f} %\n",
                        errors.size(), std::ranges::count_if(errors, [](double e) { return e <= 0.1; }),
                        100 * errors.back());
  text +=
      "Memory is Sherd's own, of another loss and other recomputation: it says nothing of the program that was "
      "measured.\n";
  for (const auto& [name, why] : file.not_covered) text += fmt::format("not covered: {} ({})\n", name, why);
  return text;
}

}  // namespace sherd::plan
