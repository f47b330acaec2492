#include "tools/train/calibration.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/comm/group/link.h"
#include "runtime/os/instruction_level.h"
#include "runtime/os/machine.h"
#include "runtime/tensor/fnv1a.h"

namespace sherd::train {

namespace {

constexpr const char* kFolder = "calibration";
constexpr double kOldDays = 30;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string number(double count, std::string_view what) {
  return fmt::format("{:.0f} {}{}", count, what, count == 1 ? "" : "s");
}

std::string advice(int ranks) { return fmt::format("sherd calibrate --ranks {}", ranks); }

// By the files beside the one that is not there: of how many ranks this machine has been measured, by which build.
std::string why_none(const std::filesystem::path& file, int ranks) {
  const std::string name = file.filename(), machine = name.substr(0, name.find('.'));
  const std::string build = name.substr(0, name.rfind('.', name.rfind(".json") - 1));
  std::string why;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), error)) {
    const std::string other = entry.path().filename();
    if (!other.starts_with(machine + ".") || !other.ends_with(".json")) continue;
    if (other.starts_with(build + ".")) why = " for so many ranks";
    else if (why.empty()) why = " since this build was made";
  }
  return fmt::format("not calibrated{}: {}", why, advice(ranks));
}

std::string age_of(const Calibration& calibration) {
  const double days = std::floor(std::max(0.0, seconds_since_1970() - calibration.time) / 86400);
  const std::string age = days == 0 ? "today" : number(days, "day") + " ago";
  return days <= kOldDays ? age : fmt::format("{}, which is long; {}", age, advice(calibration.ranks));
}

// A calibration measures f32 and bf16; products of f16 cost about what those of bf16 do.
void fill(std::map<DType, Rate>& rates) {
  for (const DType missing : {DType::bf16, DType::f16, DType::f32})
    for (const DType like : {DType::bf16, DType::f32, DType::f16})
      if (const auto found = rates.find(like); found != rates.end() && !rates.contains(missing))
        rates.emplace(missing, Rate{found->second.points, fmt::format("that of {}", name(like)), true});
}

}  // namespace

std::string machine_name() { return fmt::format("{}, {}", cpu_model(), instruction_level().name); }

std::string calibration_file(const std::string& folder, int ranks) {
  return fmt::format("{}/{}/{:016x}.{}.{}.json", folder, kFolder, fnv1a(machine_name()), build_id().substr(0, 12),
                     ranks);
}

std::string mismatch_of(const Calibration& calibration, int ranks, int threads) {
  if (calibration.device.name != machine_name()) return "of another machine, " + calibration.device.name;
  if (calibration.ranks != ranks) return fmt::format("with {}, not {}", number(calibration.ranks, "rank"), ranks);
  if (calibration.build != build_id()) return "by another build";
  if (threads > 0 && calibration.threads != threads)
    return fmt::format("with {} of a rank, not {}", number(calibration.threads, "thread"), threads);
  return "";
}

std::string said_of(const Calibration& calibration, int ranks, int threads) {
  const std::string mismatch = mismatch_of(calibration, ranks, threads);
  return fmt::format("calibrated {}{}{}", age_of(calibration), mismatch.empty() ? "" : "; ", mismatch);
}

FoundCalibration find_calibration(int ranks, const std::string& folder, int threads) {
  if (folder.empty()) return {.text = "not calibrated: SHERD_CACHE is set to nothing, or there is no home"};
  const std::string path = calibration_file(folder, ranks);
  std::ifstream file(path);
  if (!file) return {.text = why_none(path, ranks)};
  const std::string text(std::istreambuf_iterator<char>(file), {});
  try {
    FoundCalibration found{.made = parse_calibration(text, path)};
    found.text = said_of(*found.made, ranks, threads);
    return found;
  } catch (const Error& error) {
    return {.text = fmt::format("not calibrated: {}; {} makes it anew", error.message(), advice(ranks))};
  }
}

std::map<std::string, LinkPrice, std::less<>> link_prices(const Links& links) {
  std::map<std::string, LinkPrice, std::less<>> prices;
  for (const AxisLink& axis : links.each()) prices[axis.axis] = comm::price_of(axis.shape);
  return prices;
}

Cluster calibrated_cluster(Calibration calibration, int ranks, const Links& links) {
  Cluster cluster{.device = std::move(calibration.device),
                  .hosts = {1, ranks},
                  .in = {},
                  .out = {},
                  .axes = link_prices(links),
                  .measured = std::move(calibration.calls),
                  .core_share = calibration.core_share};
  fill(cluster.device.products);
  fill(cluster.device.attention);
  if (const auto found = cluster.device.links.find("ranks"); found != cluster.device.links.end())
    cluster.in = found->second;
  return cluster;
}

}  // namespace sherd::train
