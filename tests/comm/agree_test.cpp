// Small exchanges of text, and errors that every rank sees.
#include "runtime/comm/group/agree.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

void expect_texts(const Group& group) {
  const auto text_of = [](int rank, std::size_t length) { return std::string(length, static_cast<char>('a' + rank)); };
  for (const std::size_t unit : {0u, 1u, 1000u}) {  // rank 0's text is always empty
    const auto texts = gather_text(*group, text_of(group->rank(), unit * static_cast<std::size_t>(group->rank())));
    ASSERT_EQ(texts.size(), static_cast<std::size_t>(group->size()));
    for (int rank = 0; rank < group->size(); ++rank)
      EXPECT_EQ(texts[static_cast<std::size_t>(rank)], text_of(rank, unit * static_cast<std::size_t>(rank)));
  }
}

TEST(Agree, TextsOfAnyLengthReachEveryRank) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, expect_texts);
  run_processes(3, expect_texts);
}

TEST(Agree, WithoutFailuresTheWorkIsDoneOnEveryRank) {
  run_ranks(3, [](const Group& group) {
    int done = 0;
    together(*group, [&] { ++done; });
    EXPECT_EQ(done, 1);
  });
}

TEST(Agree, OneRanksErrorIsEveryRanks) {
  run_ranks(3, [](const Group& group) {
    const bool own = group->rank() == 1;
    expect_error([&] { together(*group, [&] { check(!own, "the file of {} is gone", group->rank()); }); },
                 {own ? "the file of 1 is gone" : "rank 1: the file of 1 is gone"});
    group->host().barrier();  // nobody went on alone
  });
}

TEST(Agree, OfSeveralErrorsRanksWithoutOneSeeTheLowest) {
  run_ranks(4, [](const Group& group) {
    const int r = group->rank();
    expect_error([&] { together(*group, [&] { check(r == 0 || r == 3, "reason {}", r); }); },
                 {r == 0 || r == 3 ? "rank 1: reason 1" : fmt::format("reason {}", r)});
  });
}

TEST(Agree, ErrorsOfAnyTypeCount) {
  run_ranks(2, [](const Group& group) {
    const auto fails = [&] {
      if (group->rank() == 0) throw std::out_of_range("no such key");
    };
    expect_error([&] { together(*group, fails); }, {"no such key"});
    const auto fails_silently = [&] {
      if (group->rank() == 1) throw std::runtime_error("");
    };
    expect_error([&] { together(*group, fails_silently); }, {"unknown error"});
  });
}

TEST(Agree, RanksWithOtherFactsAreNamedOnEveryRank) {
  const Disagreement error{"ranks differ", "start them alike"};
  const auto facts_of = [](int rank) {
    Facts facts{{"a", ""}, {"b", rank == 2 ? "two\nlines" : "x"}};
    if (rank != 1) facts.emplace_back("c", "y");
    return facts;
  };
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](const Group& group) {
      EXPECT_TRUE(agree(*group, facts_of(0), error));
      EXPECT_EQ(agree(*group, group->rank() == 0 ? std::nullopt : std::optional(facts_of(0)), error), false);
      if (ranks == 1) return;
      const char* const first = ranks == 2   ? "ranks differ: c is y on rank 0; none on rank 1; start"
                                : ranks == 3 ? "b is x on ranks 0, 1; two\nlines on rank 2; start them alike"
                                             : "b is x on ranks 0, 1, 3; two\nlines on rank 2; start";
      expect_error([&] { agree(*group, facts_of(group->rank()), error); }, {first});
      EXPECT_EQ(group->host().counts().all_gather.calls, 0) << "it is no communication of a step";
    });
}

TEST(Agree, FactsInAnotherOrderDiffer) {
  run_ranks(2, [](const Group& group) {
    Facts facts{{"a", "1"}, {"b", "2"}};
    if (group->rank() == 1) std::swap(facts[0], facts[1]);
    expect_error([&] { agree(*group, facts, {"ranks differ", "sort"}); }, {"ranks differ: their order differs; sort"});
  });
}

TEST(Agree, ARankThatComparesFactsDoesNotMeetOneThatGathersTexts) {
  run_ranks(2, [](const Group& group) {
    expect_error([&] { group->rank() == 0 ? (void)agree(*group, Facts(), {}) : (void)gather_text(*group, "a text"); },
                 {"rank 0 calls all_gather", "for facts to compare", "rank 1 calls all_gather"});
  });
}

TEST(Agree, AmongHoldersEachRankMayLackFacts) {
  run_ranks(3, [](const Group& group) {
    const std::string own = fmt::format("part {}", group->rank() % 2);
    const Disagreement error{"copies differ", "copy again", true};
    EXPECT_TRUE(agree(*group, Facts{{own, own}}, error));
    expect_error([&] { agree(*group, Facts{{own, std::to_string(group->rank())}}, error); },
                 {"copies differ: part 0 is 0 on rank 0; 2 on rank 2; copy again"});
  });
}

TEST(World, IsWhatTheRankWasGiven) {
  run_ranks(2, [](const Group& group) { EXPECT_EQ(world_group(), group); });
}

}  // namespace
}  // namespace sherd::testing
