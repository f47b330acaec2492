#include "runtime/exec/price.h"

#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "runtime/tensor/error.h"

namespace sherd {

std::string_view name(Movement movement) {
  constexpr std::string_view names[] = {"gather", "scatter", "reduce_all", "all_to_all"};
  return names[static_cast<std::size_t>(movement)];
}

double wire_bytes(Movement movement, int ranks, double bytes) {
  return bytes * (ranks - 1) / ranks * (movement == Movement::reduce_all ? 2 : 1);
}

double LinkPrice::carry_seconds(double bytes) const { return bytes / bytes_per_second; }

double LinkPrice::seconds(Movement movement, int ranks, double bytes) const {
  const double peers = ranks - 1, share = carry_seconds(wire_bytes(Movement::gather, ranks, bytes));
  switch (movement) {
    case Movement::reduce_all: return call_seconds + 2 * (peers * peer_seconds + share);
    case Movement::all_to_all: return call_seconds + peers * peer_seconds + 2 * share;
    default: return call_seconds + peers * peer_seconds + share;
  }
}

void check_price(const LinkPrice& price, std::string_view what) {
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  check(is_time(price.call_seconds) && is_time(price.peer_seconds) && price.bytes_per_second > 0,
        "{}: {} s, {} s, {} bytes/s; a price is not negative, a bandwidth is positive", what, price.call_seconds,
        price.peer_seconds, price.bytes_per_second);
}

std::string link_name(Movement movement, std::string_view group) { return fmt::format("{} {}", name(movement), group); }

std::string Prices::print() const {
  std::string text;
  for (const auto& [key, seconds] : rows) text += fmt::format("row {} {}\n", seconds, key);
  for (const auto& [key, link] : links)
    text += fmt::format("link {} {} {} {}\n", link.call_seconds, link.peer_seconds, link.bytes_per_second, key);
  return text;
}

Prices parse_prices(std::string_view text) {
  Prices prices;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string kind, key;
    double seconds = 0;
    LinkPrice link;
    words >> kind;
    if (kind == "row") words >> seconds;
    else words >> link.call_seconds >> link.peer_seconds >> link.bytes_per_second;
    std::getline(words >> std::ws, key);
    check((kind == "row" || kind == "link") && !words.fail() && std::isfinite(seconds) && seconds >= 0,
          "line {} of the prices is \"{}\"; expected \"row SECONDS KEY\" or \"link CALL PEER BYTES_PER_SECOND NAME\"",
          number, line);
    check_price(link, fmt::format("line {} of the prices", number));
    const bool is_new =
        kind == "row" ? prices.rows.emplace(key, seconds).second : prices.links.emplace(key, link).second;
    check(is_new, "line {} of the prices gives \"{}\" a second price", number, key);
  }
  return prices;
}

}  // namespace sherd
