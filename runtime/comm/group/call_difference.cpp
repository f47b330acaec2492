#include "runtime/comm/group/call_difference.h"

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/comm/group/fingerprint.h"

namespace sherd::comm {

std::string difference_of_calls(std::span<const RankCall> calls) {
  if (std::ranges::all_of(calls, [&](const RankCall& call) { return call.hash == calls.front().hash; })) return {};
  struct Side {
    std::string ranks;
    std::string text;
  };
  std::map<std::uint64_t, std::size_t> index;
  std::vector<Side> sides;
  for (const RankCall& call : calls) {
    const auto [entry, is_new] = index.try_emplace(call.hash, sides.size());
    if (is_new) {
      sides.push_back({fmt::format("rank {}", call.rank), call.text});
    } else {
      std::string& ranks = sides[entry->second].ranks;
      if (ranks.find(',') == std::string::npos) ranks = fmt::format("ranks{}", ranks.substr(4));
      ranks += fmt::format(", {}", call.rank);
    }
  }
  const auto place_of = [](const Side& side) {
    const std::size_t at = side.text.rfind(", call ");  // the place of a call, behind all else
    return at == side.text.npos ? std::string() : side.text.substr(at);
  };
  const std::string place = place_of(sides.front());
  if (std::ranges::all_of(sides, [&](const Side& side) { return place_of(side) == place; }))
    for (Side& side : sides) side.text.resize(side.text.size() - place.size());
  std::string text;
  bool is_hidden = false, differ_in_size = true;
  const auto without_size = [&](const Side& side) { return side.text.substr(0, side.text.find('[')) + place_of(side); };
  for (const Side& side : sides) {
    const bool is_plural = side.ranks.find(',') != std::string::npos;
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", side.ranks, is_plural ? "call" : "calls", side.text);
    is_hidden = is_hidden || (&side != &sides.front() && side.text == sides.front().text);
    differ_in_size = differ_in_size && without_size(side) == without_size(sides.front());
  }
  if (is_hidden) text += " (they differ in the part of the list that is not shown)";
  text += "; all ranks of a group must make the same calls in the same order";
  if (differ_in_size && !is_hidden) text += kUnlikeSizes;
  return text;
}

}  // namespace sherd::comm
