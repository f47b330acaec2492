// Rank discovery from maps instead of the environment. The variables' names and forms are those of the launchers'
// documentation (torchrun 2.x, Open MPI 4.1, Slurm 23, flux-environment(7), pals.h of Cray) and those that MPICH 4.0
// sets.
#include "runtime/comm/job/launchers.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

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

// The mpirun of MPICH and Intel MPI.
const Variables kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "7"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kPals = {{"PALS_RANKID", "5"},       {"PMI_RANK", "5"},        {"PMI_SIZE", "6"},
                         {"PALS_LOCAL_RANKID", "2"}, {"PALS_LOCAL_SIZE", "3"}, {"PALS_NODEID", "1"},
                         {"PMI_LOCAL_RANK", "2"},    {"PMI_LOCAL_SIZE", "3"},  {"PALS_APID", "a6b2"}};
const Variables kFlux = {{"FLUX_TASK_RANK", "1"},     {"FLUX_JOB_SIZE", "2"},   {"FLUX_JOB_NNODES", "1"},
                         {"FLUX_TASK_LOCAL_ID", "1"}, {"FLUX_JOB_ID", "f2oY3"}, {"FLUX_URI", "local:///run/flux/local"},
                         {"PMI_RANK", "1"},           {"PMI_SIZE", "2"},        {"PMI_FD", "9"}};

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
  EXPECT_NE(info.job, discover(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1")).job);
}

// MASTER_PORT is torchrun's own.
TEST(DiscoverRank, TorchrunsRanksOfSeveralHostsMeetBesideItsMaster) {
  const auto several = [](const Variables& more) {
    return discover(merge(more, with(kTorchrun, "MASTER_ADDR", "node0")));  // of two values the first counts
  };
  const RankInfo beside = several({{"MASTER_PORT", "29500"}}), chosen = several({{"SHERD_PORT", "7"}});
  EXPECT_EQ(beside.store_host, "node0");
  EXPECT_EQ(beside.store_port, 29501);
  EXPECT_EQ(chosen.store_port, 7);
  EXPECT_EQ(several({{"SHERD_STORE", "node1:9"}}).store_host, "node1");
  for (const auto& wrong : {Variables{{"MASTER_PORT", "65535"}}, Variables{{"MASTER_PORT", "x"}}})
    expect_error([&] { several(wrong); },
                 {"MASTER_PORT='" + wrong.at("MASTER_PORT") + "'", "SHERD_PORT", "MASTER_ADDR"});
  expect_error([&] { several({{"SHERD_PORT", "0"}}); }, {"SHERD_PORT='0'"});
  EXPECT_EQ(discover(without(kTorchrun, "MASTER_ADDR")).store_host, "");
  const Variables one_host = {{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "node0"},
                              {"MASTER_PORT", "29500"}};
  EXPECT_EQ(discover(one_host).store_host, "") << "they find each other by a file";
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

// ---- launchers whose variables others set too ----

struct Identity {
  const char* what;
  Variables variables;
  const char* source;
  int rank, world_size, local_rank, local_world_size;
};

TEST(DiscoverRank, MpiLaunchersAndFlux) {
  // What srun sets for Cray's MPI (mpi/cray_shasta), and one task per host of it.
  const Variables cray = {{"PALS_RANKID", "9"}, {"PALS_NODEID", "2"}, {"PALS_APID", "99.0"}};
  const Variables pmi = {{"PMI_RANK", "9"}, {"PMI_SIZE", "11"}, {"PMI_FD", "5"}};
  const Variables per_host = merge({{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                    {"SLURM_NTASKS", "2"},
                                    {"SLURM_PROCID", "1"},
                                    {"SLURM_LOCALID", "0"},
                                    {"SLURM_NODEID", "1"}},
                                   kSlurm);
  const Variables two_hosts = with(with(kHydra, "MPI_LOCALNRANKS", "1"), "MPI_LOCALRANKID", "0");
  const Variables one_task = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
  for (const Identity& c : std::vector<Identity>{
           {"mpirun -n 2", kHydra, "Hydra", 1, 2, 1, 2},
           {"mpirun -n 2 -ppn 1", two_hosts, "Hydra", 1, 2, 0, 1},
           {"mpirun -n 1", one_task, "Hydra", 0, 1, 0, 1},
           {"mpirun in a Slurm job", merge(kHydra, per_host), "Hydra", 1, 2, 1, 2},
           {"mpirun in a batch script", merge(kHydra, without(kSlurm, "SLURM_STEP_ID")), "Hydra", 1, 2, 1, 2},
           {"mpiexec", kPals, "PALS", 5, 6, 2, 3},
           {"mpiexec of one host", with(with(kPals, "PALS_LOCAL_SIZE", "6"), "PALS_LOCAL_RANKID", "5"), "PALS", 5, 6, 5,
            6},
           {"mpiexec and what oneCCL wants", merge(kPals, kHydra), "PALS", 5, 6, 2, 3},
           {"flux run", kFlux, "Flux", 1, 2, 1, 2},
           {"flux run -N 2", with(with(kFlux, "FLUX_JOB_NNODES", "2"), "FLUX_TASK_LOCAL_ID", "0"), "Flux", 1, 2, 0, 1},
           {"flux run -N 2, unevenly",
            with(with(with(kFlux, "FLUX_JOB_NNODES", "2"), "FLUX_JOB_SIZE", "4"), "FLUX_TASK_LOCAL_ID", "2"), "Flux", 1,
            4, 2, 3},
           {"flux run for Cray's MPI", merge(kFlux, cray), "Flux", 1, 2, 1, 2},
           {"srun", merge(kSlurm, pmi), "Slurm", 9, 11, 1, 3},
           {"srun for Cray's MPI", merge(merge(kSlurm, pmi), cray), "Slurm", 9, 11, 1, 3},
           {"srun, one task per host, for Cray's MPI", merge(merge(per_host, cray), pmi), "Slurm", 1, 2, 0, 1},
           {"srun of ParaStation", merge(per_host, one_task), "Slurm", 1, 2, 0, 1},
           {"mpirun of Open MPI", merge(kOpenMpi, kHydra), "Open MPI", 2, 3, 2, 3},
           {"torchrun under mpirun", merge(kTorchrun, two_hosts), "torchrun", 5, 8, 1, 4},
           {"torchrun under mpiexec without a size", merge(kTorchrun, without(kPals, "PMI_SIZE")), "torchrun", 5, 8, 1,
            4},
           {"torchrun under flux run -N 2",
            merge(kTorchrun, {{"FLUX_TASK_RANK", "1"},
                              {"FLUX_JOB_SIZE", "2"},
                              {"FLUX_JOB_NNODES", "2"},
                              {"FLUX_TASK_LOCAL_ID", "0"}}),
            "torchrun", 5, 8, 1, 4},
           {"sherd run under mpirun", merge(kSherd, kHydra), "sherd run", 1, 4, 1, 4},
           {"sherd run where PMI_SIZE is left over", merge(kSherd, {{"PMI_SIZE", "2"}}), "sherd run", 1, 4, 1, 4},
           {"a flux batch script",
            {{"FLUX_URI", "local:///run/flux/local"}, {"FLUX_JOB_SIZE", "4"}},
            "none",
            0,
            1,
            0,
            1},
           {"PMI of one process", {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}, {"PMIX_RANK", "0"}}, "none", 0, 1, 0, 1}}) {
    SCOPED_TRACE(c.what);
    expect_rank(discover(c.variables), c.source, c.rank, c.world_size, c.local_rank, c.local_world_size);
  }
}

TEST(DiscoverRank, HydraWithinOneTaskOfAnotherLauncher) {
  for (const Identity& c : std::vector<Identity>{
           {"mpirun in a flux run of one task",
            merge(kHydra, {{"FLUX_TASK_RANK", "0"},
                           {"FLUX_JOB_SIZE", "1"},
                           {"FLUX_JOB_NNODES", "1"},
                           {"FLUX_TASK_LOCAL_ID", "0"}}),
            "Hydra", 1, 2, 1, 2},
           {"mpirun where an image says that there is one rank",
            merge(kHydra, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}),
            "Hydra", 1, 2, 1, 2}}) {
    SCOPED_TRACE(c.what);
    expect_rank(discover(c.variables), c.source, c.rank, c.world_size, c.local_rank, c.local_world_size);
  }
}

TEST(DiscoverRank, RanksThatNobodyHasNumberedAreRefused) {
  for (const auto& [variables, says] : std::vector<std::pair<Variables, std::string>>{
           {{{"PMI_SIZE", "2"}}, "PMI_SIZE=2: 2 ranks"},
           {{{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"PMI_FD", "7"}}, "PMI_SIZE=2: 2 ranks"},
           {without(kHydra, "MPI_LOCALRANKID"), "PMI_SIZE=2: 2 ranks"},
           // mpiexec -pmi-port of Hydra
           {{{"PMI_PORT", "n1:4711"}, {"PMI_ID", "0"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "0"}},
            "MPI_LOCALNRANKS=2: 2 ranks"},
           {{{"MV2_COMM_WORLD_SIZE", "4"}}, "MV2_COMM_WORLD_SIZE=4: 4 ranks"},
           {{{"JSM_NAMESPACE_SIZE", "6"}}, "JSM_NAMESPACE_SIZE=6: 6 ranks"},
           {{{"PMI_RANK", "1"}}, "PMI_RANK=1: at least 2 ranks"},
           {{{"PMI_RANK", "2147483647"}}, "PMI_RANK=2147483647: at least 2147483648 ranks"},
           {{{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "prterun-n1-7@1"}}, "PMIX_RANK=3: at least 4 ranks"},
           // No step: an allocation, or a batch script.
           {merge({{"PMI_SIZE", "2"}}, without(kSlurm, "SLURM_STEP_ID")), "PMI_SIZE=2: 2 ranks"}})
    expect_error([&] { discover(variables); }, {says, "`sherd run -n ", "or unset "});
}

TEST(DiscoverRank, PalsMayTellTheSizeByAFile) {
  // pals.h: in version 5 the header goes on, in version 1 it ends with two more members.
  struct Header {
    int version = 5;
    std::size_t total_size = 0, comm_profile_size = 0, comm_profile_offset = 0;
    int ncomm_profiles = 0;
    std::size_t cmd_size = 0, cmd_offset = 0;
    int ncmds = 0;
    std::size_t pe_size = 0, pe_offset = 0;
    int npes = 6;
    std::size_t node_size = 0, node_offset = 0;
    int nnodes = 0;
  };
  const testing::TempDir folder;
  const auto with_file = [&](const Header& header) {
    const std::string content(reinterpret_cast<const char*>(&header), sizeof header);
    return discover(with(without(kPals, "PMI_SIZE"), "PALS_APINFO", folder.write("apinfo", content)));
  };
  for (const int version : {1, 5}) expect_rank(with_file({.version = version}), "PALS", 5, 6, 2, 3);
  expect_error([&] { with_file({.version = 6}); },
               {"PALS_RANKID=5", "PMI_SIZE", "PALS_APINFO", "apinfo", "--pmi=cray"});
  expect_error([&] { with_file({.npes = 5}); }, {"PALS_RANKID=5", "0..4"});
  for (const std::string& path : {folder / "none", folder.path(), folder.write("short", "abc"), std::string()})
    expect_error([&] { discover(with(without(kPals, "PMI_SIZE"), "PALS_APINFO", path)); }, {"PALS_APINFO", path});
}

TEST(DiscoverRank, MissingAndWrongNumbersOfMpiLaunchersAreNamed) {
  for (const auto* name : {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"})
    expect_error([&] { discover(without(kPals, name)); }, {name, "not set", "PALS"});
  for (const auto* name : {"FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"})
    expect_error([&] { discover(without(kFlux, name)); }, {name, "not set", "Flux"});
  expect_error([] { discover(with(kHydra, "PMI_RANK", "2")); }, {"PMI_RANK=2", "0..1", "PMI_SIZE=2"});
  expect_error([] { discover(with(kHydra, "MPI_LOCALNRANKS", "x")); }, {"MPI_LOCALNRANKS='x'"});
  expect_error([] { discover(with(kFlux, "FLUX_JOB_NNODES", "3")); }, {"FLUX_JOB_NNODES=3", "1..2"});
  expect_error([] { discover(with(kFlux, "FLUX_JOB_NNODES", "0")); }, {"FLUX_JOB_NNODES=0", "1..2"});
}

TEST(DiscoverRank, JobsOfOneHostDiffer) {
  EXPECT_EQ(discover(kPals).job, "PALS-a6b2");
  EXPECT_EQ(discover(kFlux).job, "Flux-f2oY3-local:///run/flux/local");
  EXPECT_EQ(discover(kHydra).job, "") << "no proxy has started this process: tests/tools/mpirun_test.py";
}

}  // namespace
}  // namespace sherd
