#include "tools/plan/slowness.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/tensor/error.h"

namespace sherd::plan {

namespace {

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (const auto part : std::views::split(text, separator)) parts.emplace_back(part.begin(), part.end());
  return parts;
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int rank_of(std::string_view text, int ranks, std::string_view flag, std::string_view part) {
  const auto rank = number<int>(text);
  check(rank && *rank >= 0 && *rank < ranks, "{} {}: \"{}\" must be a rank from 0 to {}", flag, part, text, ranks - 1);
  return *rank;
}

/// What stands before and after "=", the latter as a factor above 0.
std::pair<std::string_view, double> with_factor(std::string_view part, std::string_view flag, std::string_view form) {
  const std::size_t equals = part.find('=');
  const auto factor = equals == part.npos ? std::nullopt : number<double>(part.substr(equals + 1));
  check(factor && std::isfinite(*factor) && *factor > 0 && *factor <= 1e6,
        "{} \"{}\" must be {}, with a factor from above 0 to 1e6", flag, part, form);
  return {part.substr(0, equals), *factor};
}

double uniform(std::mt19937_64& draws) { return (static_cast<double>(draws() >> 11) + 0.5) * 0x1p-53; }

void draw_slow(std::vector<double>& factors, double percent, double most, std::mt19937_64& draws) {
  const auto ranks = static_cast<double>(factors.size());
  std::set<std::size_t> chosen;
  const auto count = static_cast<std::size_t>(std::clamp(std::round(ranks * percent / 100), 1.0, ranks));
  while (chosen.size() < count) chosen.insert(static_cast<std::size_t>(uniform(draws) * ranks));
  for (const std::size_t r : chosen) factors[r] *= 1 + (most - 1) * uniform(draws);
}

/// Ranks beside `rank` in rings of its groups, in order.
std::set<int> neighbours(const Timeline& step, int rank) {
  std::set<int> all;
  for (const Timeline::Group& group : step.groups) {
    const std::vector<int> members = group.grid.members(rank);
    const std::size_t n = members.size();
    const auto at = static_cast<std::size_t>(std::ranges::find(members, rank) - members.begin());
    for (const std::size_t other : {(at + 1) % n, (at + n - 1) % n})
      if (members[other] != rank) all.insert(members[other]);
  }
  return all;
}

}  // namespace

std::vector<double> slow_ranks(std::string_view text, int ranks, std::uint64_t seed) {
  constexpr std::string_view kForm = "RANK=FACTOR or PERCENT%=FACTOR, as 3=1.3 or 1%=1.5";
  if (text.empty()) return {};
  std::vector<double> factors(static_cast<std::size_t>(ranks), 1);
  std::mt19937_64 draws(seed);
  for (const std::string_view part : parts_of(text, ',')) {
    const auto [who, factor] = with_factor(part, "--slow", kForm);
    if (!who.ends_with('%')) {
      factors[static_cast<std::size_t>(rank_of(who, ranks, "--slow", part))] *= factor;
      continue;
    }
    const auto percent = number<double>(who.substr(0, who.size() - 1));
    check(percent && *percent > 0 && *percent <= 100, "--slow \"{}\" must be {}, with a share from above 0 to 100 %",
          part, kForm);
    draw_slow(factors, *percent, factor, draws);
  }
  return factors;
}

std::vector<SimulateOptions::SlowLink> slow_links(std::string_view text, const Timeline& step) {
  std::vector<SimulateOptions::SlowLink> links;
  if (text.empty()) return links;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto [who, factor] = with_factor(part, "--slow-link", "RANK-RANK=FACTOR, as 0-1=0.1");
    const std::size_t dash = who.find('-');
    check(dash != who.npos, "--slow-link \"{}\" must be RANK-RANK=FACTOR, as 0-1=0.1", part);
    const int a = rank_of(who.substr(0, dash), step.ranks, "--slow-link", part);
    const int b = rank_of(who.substr(dash + 1), step.ranks, "--slow-link", part);
    const std::set<int> beside = neighbours(step, a);
    check(beside.contains(b), "--slow-link {}: ranks {} and {} are neighbours in no ring; beside {} are {}", part, a, b,
          a, beside.empty() ? "none" : fmt::format("{}", fmt::join(beside, ", ")));
    links.push_back({a, b, factor});
  }
  return links;
}

std::vector<int> ranks_by_text(std::string_view text, int ranks) {
  std::set<int> chosen;
  for (const std::string_view part : parts_of(text, ',')) chosen.insert(rank_of(part, ranks, "--trace-ranks", text));
  return {chosen.begin(), chosen.end()};
}

}  // namespace sherd::plan
