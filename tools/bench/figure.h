#pragma once
// A figure: one named number beside what it is compared with. What it must reach is a rule over these, judged in one
// place, so that no measurement passes itself.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace sherd::bench {

/// What a number counts, how it is printed, and which direction is better.
enum class Better : std::uint8_t { lower, higher };
struct Unit {
  std::string_view name{};
  Better better = Better::lower;
  int digits = 1;  ///< after the point, in text
};
constexpr Unit lower(std::string_view name, int digits = 1) { return {name, Better::lower, digits}; }
constexpr Unit higher(std::string_view name, int digits = 1) { return {name, Better::higher, digits}; }

/// What a target is compared with; describe() has a text for each, in this order.
enum class Rule : std::uint8_t {
  none,
  value_at_most,
  value_at_least,
  ratio_at_least,       ///< times better than the peer
  limit_factor_at_most  ///< value / limit, for units of which lower is better
};
struct Target {
  Rule rule = Rule::none;
  double value = 0;
};
constexpr Target at_most(double value) { return {Rule::value_at_most, value}; }
constexpr Target at_least(double value) { return {Rule::value_at_least, value}; }
constexpr Target ratio_at_least(double value) { return {Rule::ratio_at_least, value}; }
constexpr Target limit_factor_at_most(double value) { return {Rule::limit_factor_at_most, value}; }

/// The same figure of another program.
struct Peer {
  std::string name;
  double value = 0;
  std::string settings{};  ///< with which it ran; empty: none to speak of
};

struct Figure {
  std::string name;
  Unit unit{};
  Target target{};
  std::optional<double> value{};    ///< none: could not be measured, `note` says why
  std::vector<Peer> peers{};        ///< targets are judged against the first
  std::optional<double> limit{};    ///< what the machine allows, measured in the same run
  std::string device{};             ///< the card it was measured on; empty: the CPU
  nlohmann::ordered_json detail{};  ///< numbers behind the value; null without any
  std::string note{};
};

/// Times better than the first peer: 1.2 is 20 % faster, or 1/1.2 of the bytes. None without both values.
std::optional<double> ratio(const Figure& figure);
/// Whether the target is reached; none without a target, false if what it needs could not be measured.
std::optional<bool> passes(const Figure& figure);
/// "ratio >= 1.4"; empty without a target.
std::string describe(const Target& target);

/// One line each: an object with name, value, unit, peer, peer_value, ratio, limit, target, pass; then rule, and where
/// there are any: peers (all of them), device, detail, note.
std::string to_json(const Figure& figure);
std::string to_text(const Figure& figure);

}  // namespace sherd::bench
