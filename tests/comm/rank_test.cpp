// Rank discovery from maps instead of the environment, and the meeting of ranks on one host. The variables' names and
// forms are those of the launchers' documentation (torchrun 2.x, Open MPI 4.1, Slurm 23).
#include "runtime/comm/job/rank.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "runtime/comm/store/rendezvous_file.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/tensor/error.h"
#include "tests/support/expect_error.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
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

/// A fresh private folder, and a job that nobody else has.
class ConnectStore : public ::testing::Test {
 protected:
  ConnectStore() : folder_(::testing::TempDir() + "sherd-XXXXXX") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    info_.runtime_folder = folder_;
    info_.job = "torchrun-job/7";
    info_.source = "torchrun";
  }
  ~ConnectStore() override { fs::remove_all(folder_); }

  RankInfo rank(int rank, int world_size) const {
    RankInfo info = info_;
    info.rank = info.local_rank = rank;
    info.world_size = info.local_world_size = world_size;
    return info;
  }

  fs::path only_file() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_ + "/sherd")) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? fs::path() : files[0];
  }

  /// Publishes in a process that ends without a chance to clean up.
  void publish_and_die(const std::string& job) const {
    const std::string folder = rendezvous_folder(folder_);
    const pid_t child = ::fork();
    if (child == 0) {
      const PublishedAddress published(folder, job, {1, "dead"});
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }

  std::string folder_;
  RankInfo info_;
};

/// Every rank adds its number and reads the sum that the last one leaves.
void expect_meeting(const std::vector<RankInfo>& ranks) {
  std::vector<std::thread> threads;
  for (const RankInfo& info : ranks)
    threads.emplace_back([&ranks, info] {
      const auto store = connect_store(info, 10s);
      const auto size = static_cast<std::int64_t>(ranks.size());
      store->add("sum", info.rank);
      if (store->add("arrived", 1) == size) store->set("done", store->get("sum", 5s));
      EXPECT_EQ(store->get("done", 10s), std::to_string(size * (size - 1) / 2));
      if (store->add("left", 1) == size) store->set("all left", "");
      if (info.rank == 0) store->get("all left", 10s);  // it may host the store
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(ConnectStore, RanksOfOneHostMeetThroughTheFile) {
  expect_meeting({rank(2, 3), rank(1, 3), rank(0, 3)});
  EXPECT_TRUE(fs::is_empty(folder_ + "/sherd"));  // removed afterwards
}

TEST_F(ConnectStore, RanksMeetAtALauncherStore) {
  TcpStoreServerOptions options;
  options.secret = "s";
  const TcpStoreServer server(options);
  std::vector<RankInfo> ranks = {rank(0, 2), rank(1, 2)};
  for (RankInfo& info : ranks) {
    info.source = "sherd run";
    info.store_host = "127.0.0.1";
    info.store_port = server.port();
    info.secret = "s";
  }
  expect_meeting(ranks);
}

TEST_F(ConnectStore, RankZeroHostsAtAGivenAddress) {
  // A port that was free a moment ago; the server that showed it is gone.
  const int port = TcpStoreServer(TcpStoreServerOptions{}).port();
  std::vector<RankInfo> ranks = {rank(0, 2), rank(1, 2)};
  for (RankInfo& info : ranks) {
    info.store_host = "localhost";
    info.store_port = port;
    info.local_world_size = 1;  // as if on two hosts
    info.local_rank = 0;
  }
  expect_meeting(ranks);
  const TcpStoreServer taken(TcpStoreServerOptions{.port = port});
  expect_error([&] { connect_store(ranks[0], 1s); }, {std::to_string(port), "in use"});
}

TEST_F(ConnectStore, OneRankNeedsNobody) {
  const auto store = connect_store(RankInfo{}, 5s);
  store->set("a", "b");
  EXPECT_EQ(store->get("a", 1s), "b");
}

TEST_F(ConnectStore, SeveralHostsNeedSherdStoreOnEveryRank) {
  for (int r : {0, 1}) {
    RankInfo info = rank(r, 4);
    info.local_world_size = 2;
    expect_error([&] { connect_store(info, 1s); }, {"SHERD_STORE", "SHERD_SECRET", "2 of the 4"});
  }
}

TEST_F(ConnectStore, AnAddressForAllNeedsASecret) {
  RankInfo info = rank(0, 2);
  info.store_host = "192.0.2.1";  // TEST-NET-1: belongs to nobody
  info.store_port = 4711;
  expect_error([&] { connect_store(info, 1s); }, {"SHERD_SECRET"});
  info.rank = 1;
  expect_error([&] { connect_store(info, 1s); }, {"SHERD_SECRET"});
}

TEST_F(ConnectStore, FileIsPrivateAndCompleteAndHoldsTheSecret) {
  const auto store = connect_store(rank(0, 2), 5s);
  struct stat status{};
  ASSERT_EQ(::stat(only_file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((folder_ + "/sherd").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  std::ifstream file(only_file());
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& part : {fmt::format("pid {}\n", ::getpid()), std::string("port "), std::string("secret ")})
    EXPECT_NE(content.find(part), std::string::npos) << "'" << part << "' is not in: " << content;
}

TEST_F(ConnectStore, TheFileGoesWhenAllHaveConnected) {
  const auto host = connect_store(rank(0, 2), 5s), peer = connect_store(rank(1, 2), 5s);
  only_file();
  peer->all_have_connected();  // which is rank 0's to act on
  only_file();
  host->all_have_connected();
  EXPECT_TRUE(fs::is_empty(folder_ + "/sherd"));
  peer->set("still", "served");
  EXPECT_EQ(host->get("still", 1s), "served");
}

TEST_F(ConnectStore, AFolderThatCannotBeMadeSaysWhy) {
  // A folder of this user in which none can be made: the reason is the one of this call, not what errno was before.
  errno = 0;
  expect_error([&] { rendezvous_folder("/proc/self"); }, {"cannot make the folder /proc/self/sherd: No such file"});
}

TEST_F(ConnectStore, FileOfADeadProcessIsIgnoredThenReplaced) {
  publish_and_die(info_.job);
  expect_error([&] { connect_store(rank(1, 2), 30ms); }, {"rank 0", "torchrun-job/7", "has ended"});
  EXPECT_THROW(connect_store(rank(1, 2), 30ms), CommError);
  expect_meeting({rank(1, 2), rank(0, 2)});
  publish_and_die("another job");
  only_file();
  expect_meeting({rank(1, 2), rank(0, 2)});
  EXPECT_TRUE(fs::is_empty(folder_ + "/sherd"));  // dead files of other jobs go as well
}

TEST_F(ConnectStore, AReusedProcessNumberIsNoSignOfLife) {
  fs::path path;
  std::string content;
  {
    const auto store = connect_store(rank(0, 2), 5s);
    path = only_file();
    std::ifstream file(path);
    content.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto at = content.find("started ") + 8;
  content.replace(at, content.find('\n', at) - at, "1");  // this process's number, but as old as the machine
  std::ofstream(path) << content;
  EXPECT_THROW(connect_store(rank(1, 2), 30ms), CommError);
  expect_meeting({rank(1, 2), rank(0, 2)});
}

TEST_F(ConnectStore, GarbageFilesAreReplaced) {
  std::string path;
  {
    const auto store = connect_store(rank(0, 2), 5s);
    path = only_file();
  }
  for (const std::string& content : {std::string(), std::string(5000, 'x'), std::string("sherd-store 1\npid 1\n")}) {
    std::ofstream(path, std::ios::trunc) << content;
    EXPECT_THROW(connect_store(rank(1, 2), 20ms), CommError);
    expect_meeting({rank(1, 2), rank(0, 2)});
  }
}

TEST_F(ConnectStore, TwoLiveJobsOfOneNameAreRefused) {
  const auto first = connect_store(rank(0, 2), 5s);
  expect_error([&] { connect_store(rank(0, 2), 5s); }, {"torchrun-job/7", std::to_string(::getpid()), "SHERD_STORE"});
  EXPECT_NO_THROW(connect_store(rank(1, 2), 5s));  // the first is untouched
}

TEST_F(ConnectStore, AFolderThatOthersMayReadIsRefused) {
  fs::create_directory(folder_ + "/sherd");
  fs::permissions(folder_ + "/sherd", fs::perms::group_read, fs::perm_options::add);
  expect_error([&] { connect_store(rank(0, 2), 1s); }, {folder_ + "/sherd", "private", "XDG_RUNTIME_DIR"});
  fs::remove(folder_ + "/sherd");
  fs::create_directory(folder_ + "/elsewhere");
  fs::create_directory_symlink(folder_ + "/elsewhere", folder_ + "/sherd");
  expect_error([&] { connect_store(rank(0, 2), 1s); }, {folder_ + "/sherd"});
}

TEST_F(ConnectStore, NoJobIdNeedsSherdStore) {
  RankInfo info = rank(1, 2);
  info.job.clear();
  expect_error([&] { connect_store(info, 1s); }, {"torchrun", "job id", "SHERD_STORE"});
}

}  // namespace
}  // namespace sherd
