// Rank discovery from maps instead of the environment. The variables' names and forms are those of the launchers'
// documentation (torchrun 2.x, Open MPI 4.1, Slurm 23).
#include "runtime/comm/job/launchers.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "runtime/tensor/error.h"
#include "tests/support/expect_error.h"

namespace sherd {
namespace {

using testing::expect_error;
using Variables = std::map<std::string, std::string>;

RankInfo discover(const Variables& variables) {
  return discover_rank([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables merge(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

Variables without(Variables variables, const std::string& name) {
  EXPECT_EQ(variables.erase(name), 1u);
  return variables;
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

const Variables kSherd = {{"SHERD_RANK", "1"},
                          {"SHERD_WORLD_SIZE", "4"},
                          {"SHERD_LOCAL_RANK", "1"},
                          {"SHERD_LOCAL_WORLD_SIZE", "4"},
                          {"SHERD_STORE", "127.0.0.1:4711"},
                          {"SHERD_SECRET", "abc"}};
const Variables kTorchrun = {
    {"RANK", "5"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},         {"LOCAL_WORLD_SIZE", "4"},
    {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "7"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                            {"PMIX_NAMESPACE", "1893335041"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "99"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "9"},
                          {"SLURM_NTASKS", "11"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};

void expect_rank(const RankInfo& info, std::string_view source, int rank, int world_size, int local_rank,
                 int local_world_size) {
  EXPECT_EQ(info.source, source);
  EXPECT_EQ(info.rank, rank);
  EXPECT_EQ(info.world_size, world_size);
  EXPECT_EQ(info.local_rank, local_rank);
  EXPECT_EQ(info.local_world_size, local_world_size);
}

TEST(CacheFolder, IsWhereTheUserKeepsCaches) {
  const auto folder = [](const Variables& variables) {
    return cache_folder([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(folder({{"SHERD_CACHE", "/fast"}, {"XDG_CACHE_HOME", "/x"}, {"HOME", "/home/u"}}), "/fast");
  EXPECT_EQ(folder({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/home/u"}}), "/x/sherd");
  EXPECT_EQ(folder({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/home/u"}}), "/home/u/.cache/sherd");
  EXPECT_EQ(folder({{"SHERD_CACHE", ""}, {"HOME", "/home/u"}}), "") << "set to nothing: nothing is kept";
  EXPECT_EQ(folder({}), "");
}

TEST(DiscoverRank, NoLauncherIsOneRank) {
  const RankInfo info = discover({{"HOME", "/root"}});
  expect_rank(info, "none", 0, 1, 0, 1);
  EXPECT_EQ(info.store_host, "");
  EXPECT_EQ(info.secret, "");
}

TEST(DiscoverRank, SherdRun) {
  const RankInfo info = discover(kSherd);
  expect_rank(info, "sherd run", 1, 4, 1, 4);
  EXPECT_EQ(info.store_host, "127.0.0.1");
  EXPECT_EQ(info.store_port, 4711);
  EXPECT_EQ(info.secret, "abc");
}

TEST(DiscoverRank, Torchrun) {
  const RankInfo info = discover(kTorchrun);
  expect_rank(info, "torchrun", 5, 8, 1, 4);
  EXPECT_EQ(info.store_host, "");  // MASTER_PORT is torchrun's own
  EXPECT_NE(info.job, discover(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1")).job);
}

TEST(DiscoverRank, OpenMpi) {
  const RankInfo info = discover(kOpenMpi);
  expect_rank(info, "Open MPI", 2, 3, 2, 3);
  EXPECT_NE(info.job.find("1893335041"), std::string::npos);
}

TEST(DiscoverRank, SlurmCountsRanksPerHostFromItsList) {
  expect_rank(discover(kSlurm), "Slurm", 9, 11, 1, 3);
  expect_rank(discover(with(kSlurm, "SLURM_NODEID", "1")), "Slurm", 9, 11, 1, 4);
  expect_rank(discover(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2,3,6")), "Slurm", 9, 11, 1, 6);
  for (const char* broken : {"", "4(x2)", "4(x", "4(xy),3,3", "a,b,c", "4(x0),3", "4(x-1),3"})
    expect_error([&] { discover(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", broken)); }, {"SLURM_STEP_TASKS_PER_NODE"});
}

TEST(DiscoverRank, ASlurmAllocationWithoutAStepIsNoLauncher) {
  expect_rank(discover({{"SLURM_JOB_ID", "99"}, {"SLURM_NTASKS", "11"}, {"SLURM_NNODES", "3"}}), "none", 0, 1, 0, 1);
  // What a batch script sees.
  expect_rank(discover(without(kSlurm, "SLURM_STEP_ID")), "none", 0, 1, 0, 1);
  // sherd run, typed into such a script.
  expect_rank(discover(merge(kSherd, without(kSlurm, "SLURM_STEP_ID"))), "sherd run", 1, 4, 1, 4);
}

TEST(DiscoverRank, StartsOfAJobAreCounted) {
  const RankInfo first = discover(kSherd);
  EXPECT_EQ(first.restart, 0);
  EXPECT_EQ(first.full_world_size, 4);
  const Variables again =
      merge(kSherd, {{"SHERD_RESTART", "3"}, {"SHERD_FULL_WORLD_SIZE", "6"}, {"SHERD_JOB", "beef"}});
  EXPECT_EQ(discover(again).restart, 3);
  EXPECT_EQ(discover(again).full_world_size, 6);
  EXPECT_EQ(discover(again).job, "sherd run-beef");
  EXPECT_EQ(discover(again).saves, "");
  EXPECT_EQ(discover(with(again, "SHERD_SAVES", "/disk/saves")).saves, "/disk/saves");
  EXPECT_EQ(discover(with(kTorchrun, "SHERD_RESTART", "3")).restart, 0) << "of a sherd run around it";
  expect_error([] { discover(with(kSherd, "SHERD_RESTART", "-1")); }, {"SHERD_RESTART='-1'", "at least 0"});
  expect_error([] { discover(with(kSherd, "SHERD_FULL_WORLD_SIZE", "3")); },
               {"SHERD_FULL_WORLD_SIZE='3'", "at least 4"});
}

TEST(DiscoverRank, EveryMissingVariableIsNamed) {
  for (const auto* name :
       {"SHERD_RANK", "SHERD_WORLD_SIZE", "SHERD_LOCAL_RANK", "SHERD_LOCAL_WORLD_SIZE", "SHERD_STORE"})
    expect_error([&] { discover(without(kSherd, name)); }, {name, "not set"});
  for (const auto* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    expect_error([&] { discover(without(kTorchrun, name)); }, {name, "not set", "torchrun"});
  for (const auto* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    expect_error([&] { discover(without(kOpenMpi, name)); }, {name, "not set", "Open MPI"});
  for (const auto* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"})
    expect_error([&] { discover(without(kSlurm, name)); }, {name, "not set"});
}

TEST(DiscoverRank, EveryMalformedNumberIsNamed) {
  for (const auto* name : {"SHERD_RANK", "SHERD_WORLD_SIZE", "SHERD_LOCAL_RANK", "SHERD_LOCAL_WORLD_SIZE"})
    for (const char* value : {"", "x", "1x", " 1", "0x1", "1.0", "99999999999"})
      expect_error([&] { discover(with(kSherd, name, value)); }, {name, fmt::format("'{}'", value)});
}

TEST(DiscoverRank, NumbersOutOfRangeAreNamed) {
  expect_error([] { discover(with(kTorchrun, "RANK", "8")); }, {"RANK=8", "0..7", "WORLD_SIZE=8"});
  expect_error([] { discover(with(kTorchrun, "RANK", "-1")); }, {"RANK=-1"});
  expect_error([] { discover(with(kTorchrun, "WORLD_SIZE", "0")); }, {"WORLD_SIZE=0"});
  expect_error([] { discover(with(kTorchrun, "LOCAL_RANK", "4")); }, {"LOCAL_RANK=4", "0..3"});
  expect_error([] { discover(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")); }, {"LOCAL_WORLD_SIZE=9", "1..8"});
}

TEST(DiscoverRank, TwoLaunchersThatDisagreeAreNamed) {
  expect_error([] { discover(merge(kTorchrun, kOpenMpi)); },
               {"disagree", "torchrun", "rank 5 of 8", "Open MPI", "rank 2 of 3", "OMPI_COMM_WORLD_RANK"});
  expect_error([] { discover(merge(kSherd, kSlurm)); }, {"disagree", "sherd run", "Slurm"});
}

TEST(DiscoverRank, TwoLaunchersThatAgreeAreFine) {
  const Variables torchrun_form = {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "3"}};
  expect_rank(discover(merge(kOpenMpi, torchrun_form)), "torchrun", 2, 3, 2, 3);
}

TEST(DiscoverRank, OneSlurmTaskPerHostMayHoldAnotherLauncher) {
  auto per_host =
      with(with(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "1(x2)"), "SLURM_NTASKS", "2"), "SLURM_NODEID", "1");
  per_host["SLURM_PROCID"] = "1";
  per_host["SLURM_LOCALID"] = "0";
  expect_rank(discover(merge(kTorchrun, per_host)), "torchrun", 5, 8, 1, 4);
}

TEST(DiscoverRank, StoreAddress) {
  EXPECT_EQ(discover({{"SHERD_STORE", "[::1]:80"}}).store_host, "::1");
  EXPECT_EQ(discover(with(kTorchrun, "SHERD_STORE", "node-1.example:65535")).store_port, 65535);
  for (const char* broken : {"", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:8x", "[]:"})
    expect_error([&] { discover({{"SHERD_STORE", broken}}); }, {"SHERD_STORE", "host:port"});
}

}  // namespace
}  // namespace sherd
