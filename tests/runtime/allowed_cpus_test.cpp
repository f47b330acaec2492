// Which CPUs a process may use. Oracles: files of control groups as the kernel writes them; the mask set by hand.
#include "runtime/os/allowed_cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <limits>
#include <thread>

#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

TEST(AllowedCpus, AreThoseOfTheMaskOrOfTheQuotaIfThatIsLess) {
  const std::vector<int> three{0, 1, 5};
  EXPECT_EQ((AllowedCpus{8, three, kUnlimited}.count()), 3);
  EXPECT_EQ((AllowedCpus{8, three, 4.5}.count()), 3);
  EXPECT_EQ((AllowedCpus{8, three, 1.5}.count()), 2) << "two run at the same time, for three quarters of it";
  EXPECT_EQ((AllowedCpus{8, three, 0.1}.count()), 1);
  EXPECT_EQ(allowed_cpus().cpus, thread_cpus());
}

TEST(CpuQuota, IsTheLeastOfTheGroupAndThoseAboveItInVersion2) {
  const TempDir root;
  EXPECT_EQ(cpu_quota(root.path()), kUnlimited) << "no control groups";
  root.write("proc/self/cgroup", "0::/pods/one\n");
  EXPECT_EQ(cpu_quota(root.path()), kUnlimited);
  root.write("sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), kUnlimited);
  root.write("sys/fs/cgroup/pods/one/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 2.5);
  root.write("sys/fs/cgroup/pods/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 1.5);
}

TEST(CpuQuota, OfAContainerThatDoesNotSeeItsPath) {
  const TempDir root;
  root.write("proc/self/cgroup", "0::/docker/0123abcd\n");
  root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 0.5);
}

TEST(CpuQuota, OfVersion1BesideOtherControllers) {
  const TempDir root;
  root.write("proc/self/cgroup", "9:cpuset:/job\n5:cpuacct,cpu:/job\n1:name=systemd:/job\n0::/\nnonsense\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path()), kUnlimited);
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(cpu_quota(root.path()), 3);
}

TEST(KeepAffinity, PutsBackTheMaskOfAThreadThatIsBoundInBetween) {
  const std::vector<int> before = thread_cpus();
  std::thread([&] {
    {
      const KeepAffinity keep;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(before.back(), &one);
      ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
      EXPECT_EQ(thread_cpus(), std::vector<int>{before.back()});
    }
    EXPECT_EQ(thread_cpus(), before);
  }).join();
}

}  // namespace
}  // namespace sherd::testing
