// A case is a row of choices, one per setting, and choice 0 is the plain one. Greedily, rows are drawn and the one with
// the most pairs of choices that have not met is kept, until no draw has any.
#include "tests/comm/conformance/cases.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "runtime/comm/group/lanes.h"

namespace sherd::testing {

namespace {

using comm::CommOp;

enum Setting {
  kRanks,
  kOp,
  kType,
  kSize,
  kSplit,
  kList,
  kPlace,
  kBlocks,
  kOut,
  kWire,
  kAdd,
  kKind,
  kScale,
  kHeap,
  kVia
};
constexpr std::size_t kNumSettings = kVia + 1;
using Choices = std::array<std::size_t, kNumSettings>;

constexpr CommOp kOps[] = {CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_reduce, CommOp::broadcast,
                           CommOp::all_to_all, CommOp::send,           CommOp::barrier};
constexpr std::int64_t kSizes[] = {77, 0, 1, 20011};
constexpr std::int64_t kBlockCounts[] = {1, 3};
constexpr double kScales[] = {1, 1.0 / 3};
constexpr std::string_view kQueues[] = {kGatherQueue, kReduceQueue, ""};
// Choices of each setting; of ranks as many as there are worlds.
constexpr Choices kChoices{0, std::size(kOps), kNumDTypes, std::size(kSizes), 3, 2, 2, 2, 3, 4, 2, 5, 2, 2, 3};

bool is_reduction(CommOp op) { return op == CommOp::reduce_scatter || op == CommOp::all_reduce; }

/// The nearest choices that fit together.
Choices fitting(Choices c) {
  const CommOp op = kOps[c[kOp]];
  const auto dtype = static_cast<DType>(c[kType]);
  const bool has_shards = op == CommOp::all_gather || op == CommOp::reduce_scatter;
  const auto plain = [&](std::initializer_list<Setting> settings, bool unless) {
    for (const Setting s : settings)
      if (!unless) c[s] = 0;
  };
  plain({kType, kSize, kList}, op != CommOp::barrier);
  plain({kSplit}, has_shards || op == CommOp::all_to_all);
  plain({kOut}, has_shards && is_floating(dtype));
  plain({kBlocks}, has_shards);
  plain({kWire, kAdd}, op == CommOp::reduce_scatter);
  plain({kWire, kScale}, is_floating(dtype));
  plain({kKind, kScale}, is_reduction(op));
  plain({kAdd}, dtype != DType::boolean);
  const bool stays = c[kOut] == 0 && c[kBlocks] == 0 && c[kAdd] == 0;
  plain({kPlace}, stays && (has_shards || op == CommOp::all_reduce || op == CommOp::broadcast));
  if (is_reduction(op) && dtype == DType::boolean) c[kKind] = 2 + c[kKind] % 2;  // max and min
  if (!is_floating(dtype) && c[kKind] == 1) c[kKind] = 0;
  return c;
}

CollectiveCase case_of(const Choices& c, std::span<const int> worlds) {
  const auto dtype = static_cast<DType>(c[kType]);
  const auto other_float = [&](std::size_t by) {  // by 0 the same
    return by == 0 ? dtype : static_cast<DType>((static_cast<std::size_t>(dtype) + by) % 4);
  };
  return {.ranks = worlds[c[kRanks]],
          .op = kOps[c[kOp]],
          .dtype = dtype,
          .size = kSizes[c[kSize]],
          .split = static_cast<Split>(c[kSplit]),
          .is_list = c[kList] == 1,
          .in_place = c[kPlace] == 1,
          .blocks = kBlockCounts[c[kBlocks]],
          .out_dtype = other_float(c[kOut]),
          .wire = other_float(c[kWire]),
          .accumulate = c[kAdd] == 1,
          .reduction = {static_cast<ReduceKind>(c[kKind]), kScales[c[kScale]]},
          .in_heap = c[kHeap] == 1,
          .queue = kQueues[c[kVia]]};
}

Choices draw(std::size_t num_worlds, std::mt19937& random) {
  Choices c{};
  for (std::size_t s = 0; s < kNumSettings; ++s) c[s] = random() % (s == kRanks ? num_worlds : kChoices[s]);
  return fitting(c);
}

using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

template <class Fn>
void for_each_pair(const Choices& c, const Fn& fn) {
  for (std::size_t a = 0; a < kNumSettings; ++a)
    for (std::size_t b = a + 1; b < kNumSettings; ++b) fn(Pair{a, c[a], b, c[b]});
}

}  // namespace

std::string CollectiveCase::text() const {
  return fmt::format(
      "{} of {} {} elements on {} ranks, split {}{}{}, {} blocks, to {}, wire {}{}, {} times {}{}, queue \"{}\"",
      comm::name(op), size, name(dtype), ranks, static_cast<int>(split), is_list ? ", in a list" : "",
      in_place ? ", in place" : "", blocks, name(out_dtype), name(wire), accumulate ? ", added to" : "",
      name(reduction.kind), reduction.scale, in_heap ? ", in a heap" : "", queue);
}

std::vector<CollectiveCase> pairwise_cases(std::span<const int> worlds) {
  constexpr int kDraws = 40;
  std::mt19937 random(35);
  std::set<Pair> met;
  std::vector<CollectiveCase> cases;
  for (;;) {
    Choices best{};
    int most = 0;
    for (int i = 0; i < kDraws; ++i) {
      const Choices c = draw(worlds.size(), random);
      int fresh = 0;
      for_each_pair(c, [&](const Pair& pair) { fresh += met.contains(pair) ? 0 : 1; });
      if (fresh > most) most = fresh, best = c;
    }
    if (most == 0) return cases;
    for_each_pair(best, [&](const Pair& pair) { met.insert(pair); });
    cases.push_back(case_of(best, worlds));
  }
}

CollectiveCase draw_case(std::span<const int> worlds, std::mt19937& random) {
  return case_of(draw(worlds.size(), random), worlds);
}

}  // namespace sherd::testing
