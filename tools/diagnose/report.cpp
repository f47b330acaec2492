#include "tools/diagnose/report.h"

#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

#include "runtime/tensor/indices.h"

namespace sherd::diagnose {

namespace {

using nlohmann::ordered_json;

ordered_json shares_to_json(const Shares& shares) {
  ordered_json object = ordered_json::object();
  for (const std::size_t s : indices(shares.seconds))
    object[std::string(name(static_cast<Share>(s)))] = shares.seconds[s];
  return object;
}

std::string in_ms(double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); }

std::string shares_text(const Shares& shares) {
  std::vector<std::size_t> order(kNumShares);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t s) { return shares.seconds[s]; });
  std::string text;
  for (const std::size_t s : order)
    if (shares.seconds[s] > 0)
      text += fmt::format("  {:<24} {:>12} {:>6.1f} %\n", name(static_cast<Share>(s)), in_ms(shares.seconds[s]),
                          100 * shares.seconds[s] / shares.total());
  return text;
}

std::string finding_text(std::size_t number, const Finding& finding, double step) {
  std::string text = fmt::format("{}. {}: {} of a step, {:.1f} %\n", number, finding.id, in_ms(finding.seconds),
                                 100 * finding.seconds / step);
  for (const Evidence& evidence : finding.evidence)
    text += fmt::format("   {}{}\n", evidence.text,
                        evidence.line > 0 ? fmt::format(" (line {})", evidence.line) : std::string());
  return text + fmt::format("   do: {}\n   gains {}, {}\n", finding.command, in_ms(finding.gain), finding.gain_by());
}

}  // namespace

std::string to_text(const Diagnosis& d) {
  const RunFile& run = d.run;
  const double step = d.shares.total();
  std::string text = fmt::format(
      "{}: {} settled steps of {:.0f} tokens on {} rank{}, {} each with what lies between them, "
      "{:.0f} tokens/s\n{}",
      run.path, run.settled.size(), run.tokens(), run.ranks, run.ranks == 1 ? "" : "s", in_ms(step),
      run.tokens() / step, shares_text(d.shares));
  if (d.compared) {
    text += d.compared->sentence + "\n";
    for (const std::string& setting : d.compared->settings) text += "  " + setting + "\n";
    for (const std::string& note : d.compared->notes) text += "  " + note + "\n";
  }
  for (const std::size_t i : indices(d.findings)) text += finding_text(i + 1, d.findings[i], step);
  text += (d.findings.empty() ? "no finding of weight; " : "") + d.bound + "\n";
  for (const std::string& note : d.notes) text += "note: " + note + "\n";
  return text;
}

std::string to_json(const Diagnosis& d) {
  ordered_json findings = ordered_json::array();
  for (const Finding& finding : d.findings) {
    ordered_json evidence = ordered_json::array();
    for (const Evidence& one : finding.evidence) evidence.push_back({{"text", one.text}, {"line", one.line}});
    findings.push_back({{"id", finding.id},
                        {"seconds_per_step", finding.seconds},
                        {"evidence", std::move(evidence)},
                        {"command", finding.command},
                        {"gain", finding.gain},
                        {"gain_by", finding.gain_by()}});
  }
  ordered_json object = {{"run", d.run.path},
                         {"steps", d.run.settled.size()},
                         {"ranks", d.run.ranks},
                         {"tokens", d.run.tokens()},
                         {"step_seconds", d.shares.total()},
                         {"shares", shares_to_json(d.shares)},
                         {"findings", std::move(findings)},
                         {"bound", d.bound},
                         {"notes", d.notes}};
  if (d.compared) {
    Shares difference = d.compared->now;
    for (const std::size_t s : indices(difference.seconds)) difference.seconds[s] -= d.compared->before.seconds[s];
    object["baseline"] = {{"step_seconds", d.compared->before.total()},
                          {"shares", shares_to_json(d.compared->before)},
                          {"difference", shares_to_json(difference)},
                          {"settings", d.compared->settings},
                          {"notes", d.compared->notes},
                          {"sentence", d.compared->sentence}};
  }
  return object.dump() + "\n";
}

}  // namespace sherd::diagnose
