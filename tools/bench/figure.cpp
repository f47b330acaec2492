#include "tools/bench/figure.h"

#include <fmt/format.h>

namespace sherd::bench {

namespace {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

double times_better(const Unit& unit, double value, double peer) {
  return unit.better == Better::lower ? peer / value : value / peer;
}

}  // namespace

std::optional<double> ratio(const Figure& figure) {
  if (!figure.value || figure.peers.empty()) return std::nullopt;
  return times_better(figure.unit, *figure.value, figure.peers[0].value);
}

std::optional<bool> passes(const Figure& figure) {
  if (!figure.value) return false;
  const double bound = figure.target.value;
  switch (figure.target.rule) {
    case Rule::none: return std::nullopt;
    case Rule::value_at_most: return *figure.value <= bound;
    case Rule::value_at_least: return *figure.value >= bound;
    case Rule::ratio_at_least: return ratio(figure).value_or(0) >= bound;
    case Rule::limit_factor_at_most: return figure.limit && *figure.value <= bound * *figure.limit;
  }
  return false;
}

std::string describe(const Target& target) {
  constexpr const char* kForms[] = {"", "value <= {:g}", "value >= {:g}", "ratio >= {:g}", "value / limit <= {:g}"};
  return fmt::format(fmt::runtime(kForms[static_cast<std::size_t>(target.rule)]), target.value);
}

std::string to_json(const Figure& figure) {
  const bool has_target = figure.target.rule != Rule::none;
  nlohmann::ordered_json line;
  line["name"] = figure.name;
  line["value"] = or_null(figure.value);
  line["unit"] = figure.unit.name;
  line["peer"] = figure.peers.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(figure.peers[0].name);
  line["peer_value"] =
      figure.peers.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(figure.peers[0].value);
  line["ratio"] = or_null(ratio(figure));
  line["limit"] = or_null(figure.limit);
  line["target"] = has_target ? nlohmann::ordered_json(figure.target.value) : nlohmann::ordered_json(nullptr);
  line["pass"] = or_null(passes(figure));
  if (has_target) line["rule"] = describe(figure.target);
  for (const Peer& peer : figure.peers) {
    nlohmann::ordered_json row{{"peer", peer.name}, {"peer_value", peer.value}};
    if (figure.value) row["ratio"] = times_better(figure.unit, *figure.value, peer.value);
    if (!peer.settings.empty()) row["settings"] = peer.settings;
    line["peers"].push_back(std::move(row));
  }
  if (!figure.device.empty()) line["device"] = figure.device;
  if (!figure.detail.is_null()) line["detail"] = figure.detail;
  if (!figure.note.empty()) line["note"] = figure.note;
  // A peer may print what is no UTF-8; the line must stay JSON.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string to_text(const Figure& figure) {
  const int digits = figure.unit.digits;
  std::string text = fmt::format("{:<24} ", figure.name);
  text += figure.value ? fmt::format("{:>10.{}f} {}", *figure.value, digits, figure.unit.name) : "not measured";
  if (figure.limit) text += fmt::format("  limit {:.{}f}", *figure.limit, digits);
  for (const Peer& peer : figure.peers) {
    text += fmt::format("  {}: {:.{}f}", peer.name, peer.value, digits);
    if (figure.value) text += fmt::format(" ({:.2f}x)", times_better(figure.unit, *figure.value, peer.value));
  }
  if (const std::string target = describe(figure.target); !target.empty()) text += "  target " + target;
  if (const std::optional<bool> passed = passes(figure)) text += *passed ? "  pass" : "  FAIL";
  if (!figure.device.empty()) text += "  on " + figure.device;
  if (!figure.note.empty()) text += "  (" + figure.note + ")";
  return text;
}

}  // namespace sherd::bench
