#include "runtime/comm/group/agree.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/subject.h"
#include "runtime/comm/group/uncounted.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
// Else a rank that gathers texts would take the hashes of one that compares facts for the lengths of texts.
constexpr std::string_view kFacts = "facts to compare";
}  // namespace

std::vector<std::string> gather_text(ProcessGroup& any, std::string_view text) {
  const PurposeScope purpose("gather_text");
  check_fits_rank(any);
  const comm::Uncounted exchange;
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
  for (const std::size_t r : indices(failures))
    if (!failures[r].empty()) throw Error(fmt::format("rank {}: {}", r, failures[r]));
}

// ---- facts ----

std::string by_value(std::span<const int> ranks, std::span<const std::string> values) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in the order of ranks
  for (const std::size_t i : indices(values)) {
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
  using Name = std::pair<std::string_view, int>;  // with how many facts of its rank before it are called so
  using Values = std::vector<std::pair<std::size_t, const std::string*>>;  // of those who tell them
  std::vector<const std::pair<const Name, Values>*> facts;                 // in the order of their places
  std::map<Name, Values> values;
  std::vector<std::map<std::string_view, int>> counts(said.size());
  for (std::size_t place = 0, most = 1; place < most; ++place)
    for (const std::size_t i : indices(said)) {
      most = std::max(most, said[i].size());
      if (place >= said[i].size()) continue;
      const auto& [name, value] = said[i][place];
      const auto [known, is_new] = values.try_emplace({name, counts[i][name]++});
      if (is_new) facts.push_back(&*known);
      known->second.emplace_back(i, &value);
    }
  for (const auto* fact : facts) {
    std::vector<int> who;
    std::vector<std::string> what;
    const auto add = [&](std::size_t i, std::string value) {
      who.push_back(ranks[i]);
      what.push_back(std::move(value));
    };
    if (is_among_holders) {
      for (const auto& [i, value] : fact->second) add(i, *value);
    } else {
      for (const std::size_t i : indices(said)) {
        const auto told = std::ranges::find(fact->second, i, &Values::value_type::first);
        add(i, told == fact->second.end() ? "none" : *told->second);
      }
    }
    if (const std::string differs = by_value(who, what); !differs.empty())
      return fmt::format("{} is {}", fact->first.first, differs);
  }
  const bool is_same = is_among_holders || std::ranges::all_of(said, [&](const Facts& f) { return f == said[0]; });
  return is_same ? "" : "their order differs";
}

std::string facts_to_text(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) (text += name + '\0') += value + '\0';
  return text;
}

Facts facts_from_text(std::string_view text) {
  const auto take = [&] {
    const std::string_view item = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(item.size() + 1, text.size()));
    return std::string(item);
  };
  Facts facts;
  while (!text.empty()) {
    std::string name = take();
    facts.emplace_back(std::move(name), take());
  }
  return facts;
}

std::uint64_t hash_facts(const Facts& facts) { return fnv1a(facts_to_text(facts)); }

namespace {

std::vector<Facts> tell(ProcessGroup& group, const Facts& own) {
  std::vector<Facts> said;
  for (const std::string& text : gather_text(group, facts_to_text(own))) said.push_back(facts_from_text(text));
  return said;
}

bool have_many_names(const std::vector<Facts>& said) {
  std::set<std::string_view> names;
  for (const Facts& facts : said)
    for (const auto& [name, value] : facts) names.insert(name);
  return names.size() > 1;
}

/// The fact of this rank at the first place where ranks differ: there may be too many to tell all.
Facts first_that_differs(ProcessGroup& group, const Facts& own) {
  constexpr std::size_t kDigits = 16;
  std::string hashes;
  for (const auto& fact : own) hashes += fmt::format("{:016x}", hash_facts({fact}));
  const std::vector<std::string> all = gather_text(group, hashes);
  std::size_t place = 0;
  const auto hash = [&](std::string_view of) { return of.substr(std::min(of.size(), kDigits * place), kDigits); };
  const auto is_first = [&](const std::string& of) { return hash(of) == hash(all[0]); };
  while (!hash(all[0]).empty() && std::ranges::all_of(all, is_first)) ++place;
  return place < own.size() ? Facts{own[place]} : Facts{};
}

}  // namespace

bool agree(ProcessGroup& group, const std::optional<Facts>& own, const Disagreement& error) {
  const PurposeScope purpose("agree");
  check_fits_rank(group);
  if (group.size() == 1 || RankContext::current().is_ghost()) return own.has_value();
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (!error.is_among_holders) {
    std::vector<std::int64_t> hashes(ranks.size(), 0);
    const std::vector<std::int64_t> ones(ranks.size(), 1);
    if (own) hashes[static_cast<std::size_t>(group.rank())] = static_cast<std::int64_t>(hash_facts(*own) | 1);
    const comm::Uncounted exchange;
    const comm::SubjectScope subject(kFacts);
    group.host().all_gather({in_place(hashes.data(), DType::i64, ones)});
    if (std::ranges::count(hashes, 0) > 0) return false;
    if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) return true;
  }
  std::vector<Facts> said =
      tell(group, error.is_among_holders ? own.value_or(Facts()) : first_that_differs(group, *own));
  if (!error.is_among_holders && have_many_names(said)) said = tell(group, *own);
  const std::string differs = first_difference(ranks, said, error.is_among_holders);
  if (error.is_among_holders && differs.empty()) return true;
  fail("{}: {}; {}", error.what, differs, error.remedy);
}

}  // namespace sherd
