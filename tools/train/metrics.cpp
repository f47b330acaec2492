#include "tools/train/metrics.h"

#include <filesystem>
#include <istream>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/folders.h"
#include "nn/checkpoint/format/input_file.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "tools/train/version.h"

namespace sherd::train {

namespace {

using nlohmann::ordered_json;  // keys in the order of the format's description

ordered_json config_to_json(TrainConfig config) {
  ordered_json object = ordered_json::object();
  for (const auto& [key, value] : bind(config).values()) {
    const std::size_t dot = key.find('.');
    ordered_json& place = dot == std::string::npos ? object[key] : object[key.substr(0, dot)][key.substr(dot + 1)];
    std::visit([&place](const auto& v) { place = v; }, value);
  }
  return object;
}

ordered_json memory_to_json(const CategoryBytes& bytes) {
  ordered_json memory = ordered_json::object();
  for (const std::size_t c : indices(bytes)) memory[std::string(name(static_cast<MemoryCategory>(c)))] = bytes[c];
  return memory;
}

ordered_json seconds_to_json(const PartSeconds& seconds) {
  ordered_json parts = ordered_json::object();
  for (const std::size_t p : indices(seconds)) parts[std::string(name(static_cast<StepPart>(p)))] = seconds[p];
  return parts;
}

ordered_json part_to_json(const UnitTime::Part& part) {
  return {{"calls", part.calls},
          {"seconds", part.seconds},
          {"exposed_transfer_seconds", part.exposed_transfer},
          {"exposed_skew_seconds", part.exposed_skew}};
}

ordered_json host_to_json(const std::vector<RankHost>& ranks) {
  const auto of_ranks = [&ranks](double RankHost::* count) {
    ordered_json counts = ordered_json::array();
    for (const RankHost& rank : ranks) counts.push_back(rank.*count);
    return counts;
  };
  return {{"cpu", of_ranks(&RankHost::cpu)},
          {"minor_faults", of_ranks(&RankHost::minor_faults)},
          {"major_faults", of_ranks(&RankHost::major_faults)},
          {"involuntary_switches", of_ranks(&RankHost::involuntary_switches)},
          {"throttled", of_ranks(&RankHost::throttled)},
          {"swap_in", of_ranks(&RankHost::swap_in)},
          {"cpus", of_ranks(&RankHost::cpus)},
          {"online", of_ranks(&RankHost::online)},
          {"threads", of_ranks(&RankHost::threads)}};
}

ordered_json times_to_json(const RunTimes& times) {
  ordered_json ranks = ordered_json::array(), units = ordered_json::array();
  for (const RankLateness& r : times.ranks)
    ranks.push_back(
        {{"rank", r.rank}, {"host", r.host}, {"calls", r.calls}, {"median_lateness_seconds", r.median_seconds}});
  for (const UnitTime& u : times.units)
    units.push_back({{"unit", u.unit}, {"gather", part_to_json(u.gather)}, {"reduce", part_to_json(u.reduce)}});
  const StepJitter& s = times.steps;
  return {{"steps", s.count},
          {"step_seconds", {{"p50", s.p50}, {"p95", s.p95}, {"max", s.max}, {"mad", s.mad}}},
          {"ranks", std::move(ranks)},
          {"stragglers", times.stragglers},
          {"units", std::move(units)}};
}

/// Bytes of the lines up to that of step `last`, with the header before them; 0 if the file does not begin with one.
/// Throws Error where it cannot be read: what is there would be taken for nothing, and replaced.
std::uintmax_t bytes_until(const std::string& path, std::int64_t last) {
  const ckpt::InputFile file(path);
  ckpt::FileText text(file, 0, file.bytes());
  std::istream lines(&text);
  lines.exceptions(std::ios::badbit);  // throws what the file has thrown
  std::uintmax_t bytes = 0;
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // a line without its end was cut off
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) break;
    const auto step = object.find("step");
    const bool counts =
        bytes == 0 ? object.contains("config") : step != object.end() && step->is_number_integer() && *step <= last;
    if (!counts) break;
    bytes += line.size() + 1;
  }
  return bytes;
}

}  // namespace

std::string header_line(const TrainConfig& config, int ranks) {
  const ordered_json line = {
      {"config", config_to_json(config)}, {"seed", config.seed}, {"ranks", ranks}, {"version", kVersion}};
  return line.dump();
}

std::string step_line(const StepMetrics& metrics) {
  ordered_json line = {{"step", metrics.step},
                       {"loss", metrics.loss},
                       {"lr", metrics.lr},
                       {"grad_norm", metrics.grad_norm},
                       {"tokens", metrics.tokens},
                       {"tokens_per_second", metrics.tokens_per_second},
                       {"step_seconds", metrics.step_seconds},
                       {"seconds", seconds_to_json(metrics.seconds)},
                       {"exposed_comm_seconds", metrics.exposed_comm_seconds},
                       {"exposed_transfer_seconds", metrics.exposed_comm_seconds - metrics.exposed_skew_seconds},
                       {"exposed_skew_seconds", metrics.exposed_skew_seconds},
                       {"memory_peak_bytes", metrics.memory_peak_bytes},
                       {"memory_bytes", memory_to_json(metrics.memory_bytes)}};
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.loss_scale || metrics.skipped_steps > 0) line["skipped_steps"] = metrics.skipped_steps;
  if (metrics.captured) {
    line["captured"] = metrics.captured->is_replay;
    line["why"] = metrics.captured->why;
  }
  if (const auto& predicted = metrics.predicted)
    line["predicted"] = {{"step_seconds", predicted->seconds},
                         {"memory_peak_bytes", predicted->peak},
                         {"memory_bytes", memory_to_json(predicted->bytes)},
                         {"notes", predicted->notes}};
  if (metrics.val_loss) line["val_loss"] = *metrics.val_loss;
  if (metrics.save) line["save"] = {{"copied_bytes", metrics.save->copied_bytes}, {"seconds", metrics.save->seconds}};
  if (metrics.times && !metrics.times->hosts.empty()) line["host"] = host_to_json(metrics.times->hosts);
  if (metrics.times) line["run_times"] = times_to_json(*metrics.times);
  if (!metrics.replicas.empty()) line["replicas"] = metrics.replicas;
  if (const auto& regroup = metrics.regroup)
    line["regroup"] = {{"lost", regroup->lost}, {"returned", regroup->returned}, {"seconds", regroup->seconds}};
  return line.dump();
}

std::string with_val_loss(const std::string& step_line, double val_loss) {
  ordered_json line = ordered_json::parse(step_line);
  line["val_loss"] = val_loss;
  return line.dump();
}

MetricsFile::MetricsFile(std::string path, const std::string& header, std::int64_t first_step)
    : path_(std::move(path)) {
  check_replaceable(path_, "metrics", kMetricsBeginning);
  file_ = open_output(path_, "metrics", OutputMode::own);
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path_, error);
  check(!error, "cannot look at the metrics file \"{}\": {}", path_, error.message());
  const std::uintmax_t kept = is_file && first_step > 0 ? bytes_until(path_, first_step) : 0;
  if (is_file) std::filesystem::resize_file(path_, kept, error);
  check(!error, "cannot cut the metrics file \"{}\" after step {}: {}", path_, first_step, error.message());
  if (kept == 0) write(header);
}

void MetricsFile::write(const std::string& line) { write_all(file_, line + "\n", "metrics", path_); }

}  // namespace sherd::train
