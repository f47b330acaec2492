// How ranks share CPUs, by hand; and what a user is told.
#include "tools/cli/cpu_share.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <limits>

#include "runtime/tensor/error.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {

using namespace train;

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

std::vector<RankCpus> ranks_on(std::initializer_list<std::vector<int>> masks, int asked = 0,
                               double quota = kUnlimited) {
  std::vector<RankCpus> ranks;
  for (const std::vector<int>& cpus : masks) ranks.push_back({{4, cpus, quota}, asked});
  return ranks;
}

std::vector<int> threads_of(const std::vector<RankCpus>& ranks) {
  std::vector<int> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) threads.push_back(share_cpus(ranks, static_cast<int>(r)).threads);
  return threads;
}

using Counts = std::vector<int>;

TEST(CpuShare, DividesEachCpuAmongTheRanksThatMayUseIt) {
  EXPECT_EQ(threads_of(ranks_on({{0, 1, 2, 3}})), (Counts{4}));
  EXPECT_EQ(threads_of(ranks_on({{0, 1, 2, 3}, {0, 1, 2, 3}})), (Counts{2, 2})) << "ranks that nobody bound";
  EXPECT_EQ(threads_of(ranks_on({{0, 1}, {2, 3}})), (Counts{2, 2})) << "ranks that a launcher bound apart";
  EXPECT_EQ(threads_of(ranks_on({{0, 1, 2}, {3}})), (Counts{3, 1}));
  EXPECT_EQ(threads_of(ranks_on({{0}, {0}, {0}})), (Counts{1, 1, 1}));
  EXPECT_EQ(threads_of(ranks_on({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}})), (Counts{1, 1, 1})) << "three thirds";
  EXPECT_EQ(threads_of(ranks_on({{0, 1, 2, 3}, {0, 1, 2, 3}}, 0, 2.5)), (Counts{1, 1})) << "a quota of all";
  EXPECT_EQ(threads_of(ranks_on({{0, 1}, {0, 1}}, 3)), (Counts{3, 3})) << "as asked";
}

TEST(CpuShare, SaysHowManyAreAllowedAndWhy) {
  EXPECT_EQ(share_cpus(ranks_on({{0, 1, 2, 3}}), 0).lines(),
            "cpus: 4 of 4 allowed (all of this host), 1 rank of 4 threads\n");
  EXPECT_EQ(share_cpus(ranks_on({{0, 1, 2, 3}, {0, 1, 2, 3}}, 0, 1.5), 0).text,
            "2 of 4 allowed (control group quota of 1.5), 2 ranks of 1 thread");
  const std::string bound = share_cpus(ranks_on({{1}, {3}}), 0).lines();
  expect_within(bound, {"cpus: 2 of 4 allowed (affinity mask", "), 2 ranks of 1 thread\n"});
  EXPECT_EQ(share_cpus(ranks_on({{0, 1, 2}, {3}}), 0).text,
            "4 of 4 allowed (all of this host), 2 ranks of 1 to 3 threads");
}

TEST(CpuShare, WarnsOfMoreThreadsThanCpus) {
  EXPECT_EQ(share_cpus(ranks_on({{0, 1}}, 2), 0).warning, "");
  expect_within(share_cpus(ranks_on({{0, 1}}, 3), 0).warning, {"1 rank of 3 threads on 2 allowed CPUs", "fewer"});
  expect_within(share_cpus(ranks_on({{0, 1}, {0, 1}}, 2), 0).warning, {"2 ranks of 2 threads on 2 allowed CPUs"});
  expect_within(share_cpus(ranks_on({{0, 1, 2}, {3}}, 2), 0).warning, {"rank 1 has 2 threads on 1 allowed CPU"});
  expect_within(share_cpus(ranks_on({{0, 1, 2, 3}}, 4, 2), 0).lines(), {"\nwarning: 1 rank of 4 threads on 2"});
}

class CpuShareProgram : public ProgramTest {};

TEST_F(CpuShareProgram, TheFirstLineIsOfTheCpusThatAreLeft) {
  const KeepAffinity keep;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(thread_cpus().front(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);  // programs inherit it, as from taskset

  ProgramEnd end = train(1, {"--threads", "2"});
  EXPECT_EQ(end.status, 0) << end.err;
  const bool is_less = allowed_cpus().online > 1;
  EXPECT_TRUE(end.err.starts_with(
      fmt::format("cpus: 1 of {} allowed ({}", allowed_cpus().online, is_less ? "affinity mask" : "all of this host")))
      << end.err;
  expect_within(end.err, {"warning: 1 rank of 2 threads on 1 allowed CPU:"});
  end = train(2, {});
  expect_within(end.err, {"2 ranks of 1 thread\n", "warning: 2 ranks of 1 thread on 1 allowed CPU:"});
  expect_within(sherd({"info"}).out, {fmt::format("cpus             1 of {} allowed (", allowed_cpus().online)});
}

TEST_F(CpuShareProgram, AnOpenMpLibraryThatIsLoadedWithItDoesNotBindIt) {
  if (allowed_cpus().count() < 2) GTEST_SKIP() << "one CPU";
  if (run_program({"/bin/true"}, {"LD_PRELOAD=libgomp.so.1"}).err != "") GTEST_SKIP() << "no libgomp";
  // The parent of the rank is the launcher, whose mask is that of its main thread.
  const ProgramEnd end = sherd({"run", "-n", "1", "--", "/bin/sh", "-c", "grep Cpus_allowed_list: /proc/$PPID/status"},
                               {"LD_PRELOAD=libgomp.so.1", "OMP_PROC_BIND=true", "OMP_PLACES=cores"});
  EXPECT_EQ(end.out, run_program({"grep", "Cpus_allowed_list:", "/proc/self/status"}).out) << end.err;
}

TEST_F(CpuShareProgram, AnAbsurdNumberOfThreadsIsRefused) {
  const ProgramEnd end = train(1, {"--threads", "1073741824"});
  EXPECT_EQ(end.status, kUsage);
  expect_within(end.err, {"threads must be at most 1024, got 1073741824"});
}

TEST_F(CpuShareProgram, EveryCommandHasHelp) {
  for (const char* command : {"run", "train", "sample", "eval", "export", "info", "bench"})
    for (const char* flag : {"--help", "-h"}) {
      const ProgramEnd end = sherd({command, flag});
      EXPECT_EQ(end.status, 0) << command << ": " << end.err;
      expect_within(end.out, {std::string("sherd ") + command});
    }
  EXPECT_EQ(sherd({"info", "--nonsense"}).status, kUsage);
  expect_within(sherd({"info", "more"}).err, {"takes no arguments, got \"more\""});
}

}  // namespace
}  // namespace sherd::testing
