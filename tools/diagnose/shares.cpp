// Lines have parts of the thread's time, waits included, and waits of the whole step; an evaluation's line has the
// waits of each unit. So waits are taken out of the parts that have them, and split as units have them.
#include "tools/diagnose/shares.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace sherd::diagnose {

namespace {

constexpr std::array<std::string_view, kNumShares> kNames{"data",
                                                          "compute",
                                                          "exposed gathers",
                                                          "exposed reductions",
                                                          "other exposed transfers",
                                                          "skew",
                                                          "the device",
                                                          "evaluations",
                                                          "saves",
                                                          "other"};

double at(const PartSeconds& seconds, StepPart part) { return seconds[static_cast<std::size_t>(part)]; }

/// Whether the evaluation of this line is one of many.
bool is_repeated(const RunFile& run, const StepMetrics& metrics) {
  return run.config.eval_every > 0 && metrics.step % run.config.eval_every == 0;
}

}  // namespace

std::string_view name(Share share) { return kNames[static_cast<std::size_t>(share)]; }

double Shares::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

Shares& Shares::operator*=(double factor) {
  for (double& s : seconds) s *= factor;
  return *this;
}

Shares shares_of(const RunFile& run) {
  PartSeconds parts{};
  double exposed = 0, skew = 0;
  for (const StepLine& line : run.settled) {
    const StepMetrics& m = line.metrics;
    for (std::size_t p = 0; p < parts.size(); ++p)
      if (static_cast<StepPart>(p) != StepPart::evaluation || is_repeated(run, m)) parts[p] += m.seconds[p];
    exposed += m.exposed_comm_seconds;
    skew += std::min(m.exposed_skew_seconds, m.exposed_comm_seconds);
  }
  Shares shares;
  const double computing =
      at(parts, StepPart::forward) + at(parts, StepPart::backward) + at(parts, StepPart::optimizer);
  const double waiting = at(parts, StepPart::update_wait);
  // Clocks of both are read at other moments: what waits exceed is left to none.
  const double waits = std::min(exposed, computing + waiting), part_of_waits = exposed > 0 ? waits / exposed : 0;
  shares.at(Share::data) = at(parts, StepPart::data);
  shares.at(Share::skew) = skew * part_of_waits;
  shares.at(Share::device) = std::max(0.0, waiting - waits);
  shares.at(Share::compute) = computing + waiting - waits - shares.at(Share::device);
  shares.at(Share::evaluation) = at(parts, StepPart::evaluation);
  shares.at(Share::saves) = at(parts, StepPart::save);
  shares.at(Share::other) = at(parts, StepPart::other);
  const double transfers = waits - shares.at(Share::skew);
  double gathers = 0, reductions = 0;
  if (const auto& times = run.last_evaluation().metrics.times)
    for (const UnitTime& unit : times->units)
      gathers += unit.gather.exposed_transfer, reductions += unit.reduce.exposed_transfer;
  const auto steps = static_cast<double>(run.settled.size());
  const double of_units = std::min(1.0, (gathers + reductions) * steps / std::max(transfers, 1e-30));
  const double sum = std::max(gathers + reductions, 1e-30);
  shares.at(Share::gathers) = transfers * of_units * gathers / sum;
  shares.at(Share::reductions) = transfers * of_units * reductions / sum;
  shares.at(Share::collectives) = transfers - shares.at(Share::gathers) - shares.at(Share::reductions);
  return shares *= 1 / steps;
}

std::string family_of(std::string_view unit) {
  std::string family;
  for (const char c : unit) {
    if (c < '0' || c > '9') family += c;
    else if (!family.ends_with('*')) family += '*';
  }
  return family;
}

std::string most_exposed(const RunFile& run, UnitTime::Part UnitTime::* part) {
  std::map<std::string, double> families;
  if (const auto& times = run.last_evaluation().metrics.times)
    for (const UnitTime& unit : times->units) families[family_of(unit.unit)] += (unit.*part).exposed_transfer;
  if (families.empty()) return "";
  return std::ranges::max_element(families, {}, [](const auto& family) { return family.second; })->first;
}

}  // namespace sherd::diagnose
