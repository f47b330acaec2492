#include "runtime/comm/group/agree.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/ranges.h>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
thread_local int exchanges = 0;  // that this thread is in

struct Exchange {
  Exchange() { ++exchanges; }
  ~Exchange() { --exchanges; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
};
}  // namespace

bool comm::is_agreeing() { return exchanges > 0; }

std::vector<std::string> gather_text(ProcessGroup& any, std::string_view text) {
  const PurposeScope purpose("gather_text");
  check_fits_rank(any);
  const Exchange exchange;
  HostGroup& group = any.host();
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto self = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> sizes(ranks, 0), ones(ranks, 1);
  sizes[self] = static_cast<std::int64_t>(text.size());
  group.all_gather({in_place(sizes.data(), DType::i64, ones)});

  std::string all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})), '\0');
  const auto before = std::accumulate(sizes.begin(), sizes.begin() + group.rank(), std::int64_t{0});
  text.copy(all.data() + before, text.size());
  group.all_gather({in_place(all.data(), DType::u8, sizes)});

  std::vector<std::string> result;
  std::size_t at = 0;
  for (std::int64_t size : sizes) {
    result.push_back(all.substr(at, static_cast<std::size_t>(size)));
    at += static_cast<std::size_t>(size);
  }
  return result;
}

void together(ProcessGroup& group, const std::function<void()>& work) {
  const PurposeScope purpose("together");
  std::string failure;
  try {
    work();
  } catch (const std::exception& error) {
    failure = error.what();
    if (failure.empty()) failure = "unknown error";
  }
  const std::vector<std::string> failures = gather_text(group, failure);
  if (!failure.empty()) throw Error(failure);  // each failing rank shows its own reason
  for (std::size_t r = 0; r < failures.size(); ++r)
    if (!failures[r].empty()) throw Error(fmt::format("rank {}: {}", r, failures[r]));
}

// ---- facts ----

std::string by_value(std::span<const int> ranks, std::span<const std::string> values) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in the order of ranks
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto known = std::ranges::find(groups, values[i], [](const auto& group) { return group.first; });
    if (known != groups.end()) known->second.push_back(ranks[i]);
    else groups.emplace_back(values[i], std::vector<int>{ranks[i]});
  }
  if (groups.size() < 2) return "";
  std::string text;
  for (const auto& [value, those] : groups)
    text += fmt::format("{}{} on rank{} {}", text.empty() ? "" : "; ", value, those.size() > 1 ? "s" : "",
                        fmt::join(those, ", "));
  return text;
}

std::string first_difference(std::span<const int> ranks, std::span<const Facts> said, bool is_among_holders) {
  std::vector<std::string_view> names;  // in the order of their places
  std::map<std::string_view, std::vector<const std::string*>> values;
  for (std::size_t place = 0, most = 1; place < most; ++place)
    for (std::size_t i = 0; i < said.size(); ++i) {
      most = std::max(most, said[i].size());
      if (place >= said[i].size()) continue;
      const auto [known, is_new] = values.try_emplace(said[i][place].first, said.size());
      if (is_new) names.push_back(known->first);
      known->second[i] = &said[i][place].second;
    }
  for (const std::string_view name : names) {
    std::vector<int> who;
    std::vector<std::string> what;
    for (std::size_t i = 0; i < said.size(); ++i) {
      const std::string* const value = values[name][i];
      if (!value && is_among_holders) continue;
      who.push_back(ranks[i]);
      what.push_back(value ? *value : "none");
    }
    if (const std::string differs = by_value(who, what); !differs.empty())
      return fmt::format("{} is {}", name, differs);
  }
  return "";
}

std::string facts_to_text(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) (text += name + '\0') += value + '\0';
  return text;
}

Facts facts_from_text(std::string_view text) {
  const auto take = [&] {
    const std::string_view item = text.substr(0, text.find('\0'));
    text.remove_prefix(item.size() + 1);
    return std::string(item);
  };
  Facts facts;
  while (!text.empty()) {
    std::string name = take();
    facts.emplace_back(std::move(name), take());
  }
  return facts;
}

std::uint64_t hash_facts(const Facts& facts) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : facts_to_text(facts)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

bool agree(ProcessGroup& group, const std::optional<Facts>& own, const Disagreement& error) {
  const PurposeScope purpose("agree");
  if (group.size() == 1 || RankContext::current().is_ghost()) return own.has_value();
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (!error.is_among_holders) {
    std::vector<std::int64_t> hashes(ranks.size(), 0);
    const std::vector<std::int64_t> ones(ranks.size(), 1);
    if (own) hashes[static_cast<std::size_t>(group.rank())] = static_cast<std::int64_t>(hash_facts(*own) | 1);
    const Exchange exchange;
    group.host().all_gather({in_place(hashes.data(), DType::i64, ones)});
    if (std::ranges::count(hashes, 0) > 0) return false;
    if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) return true;
  }
  std::vector<Facts> said;
  for (const std::string& text : gather_text(group, own ? facts_to_text(*own) : ""))
    said.push_back(facts_from_text(text));
  const std::string differs = first_difference(ranks, said, error.is_among_holders);
  if (error.is_among_holders && differs.empty()) return true;
  fail("{}: {}; {}", error.what, differs.empty() ? "their order differs" : differs, error.remedy);
}

}  // namespace sherd
