// What a process has had of its host. Oracles: files of control groups and /proc as the kernel writes them; pages that
// the test touches itself.
#include "runtime/os/host_counts.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>

#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

TEST(HostCounts, ThrottledIsThatOfTheGroupOrOfOneAboveIt) {
  const TempDir root;
  EXPECT_EQ(host_counts(root.path()).throttled, 0) << "no control groups";
  root.write("proc/self/cgroup", "0::/pods/one\n");
  root.write("sys/fs/cgroup/pods/one/cpu.stat", "usage_usec 9000000\nnr_throttled 3\nthrottled_usec 250000\n");
  EXPECT_EQ(host_counts(root.path()).throttled, 0.25);
  root.write("sys/fs/cgroup/pods/cpu.stat", "nr_periods 4\nthrottled_usec 1500000\n");
  EXPECT_EQ(host_counts(root.path()).throttled, 1.5);
}

TEST(HostCounts, OfVersion1InNanoseconds) {
  const TempDir root;
  root.write("proc/self/cgroup", "5:cpuacct,cpu:/job\n0::/\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.stat", "nr_periods 8\nnr_throttled 2\nthrottled_time 750000000\n");
  EXPECT_EQ(host_counts(root.path()).throttled, 0.75);
}

TEST(HostCounts, SwapInIsThatOfTheHost) {
  const TempDir root;
  root.write("proc/vmstat", "nr_free_pages 77\npswpin 1234\npswpout 9\n");
  EXPECT_EQ(host_counts(root.path()).swap_in, 1234);
}

TEST(HostCounts, FaultsAndTimeAreThoseOfThisProcess) {
  constexpr std::size_t kPage = 4096, kPages = 500;
  HostCounts counted = host_counts();
  void* const bytes = ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(bytes, MAP_FAILED);
  ::madvise(bytes, kPages * kPage, MADV_NOHUGEPAGE);
  for (std::size_t p = 0; p < kPages; ++p) static_cast<volatile char*>(bytes)[p * kPage] = 1;
  const auto start = std::chrono::steady_clock::now();
  while (host_counts().cpu - counted.cpu < 0.01 && std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
    continue;
  HostCounts now = host_counts();
  now -= counted;
  EXPECT_GE(now.minor_faults, kPages);
  EXPECT_GE(now.cpu, 0.01);
  now *= 0.5;
  EXPECT_GE(now.minor_faults, kPages / 2.0);
  ::munmap(bytes, kPages * kPage);
}

}  // namespace
}  // namespace sherd::testing
