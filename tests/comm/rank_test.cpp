// The meeting of ranks on one host.
#include "runtime/comm/job/rank.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/comm/board/shm_group.h"
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
    info.secret = "s";
    info.local_world_size = 1;  // as if on two hosts
    info.local_rank = 0;
  }
  expect_meeting(ranks);
  const TcpStoreServer taken(TcpStoreServerOptions{.port = port});
  expect_error([&] { connect_store(ranks[0], 1s); }, {std::to_string(port), "in use"});
}

// The first one waits for a rank that will not come: it says why.
TEST_F(ConnectStore, ASecondRankZeroIsNamedToBoth) {
  for (const bool has_address : {true, false}) {
    RankInfo info = rank(0, 2);
    if (has_address) {
      const TcpStoreServer any(TcpStoreServerOptions{});
      info.store_host = "127.0.0.1";
      info.store_port = any.port();  // free again
      info.secret = "s";
    }
    const auto first = connect_store(info, 5s);
    expect_error([&] { connect_store(info, 5s); }, {"are two processes of the job rank 0?"});
    std::string said;
    expect_error(
        [&] {
          make_shm_group(*first, 0, 2,
                         {.rendezvous_deadline = 100ms,
                          .notice = {.after = 10ms, .say = [&](const std::string& text) { said = text; }}});
        },
        {"ranks 1 have not come", fmt::format("process {} on host ", ::getpid()), "says it is rank 0 too"});
    EXPECT_NE(said.find("says it is rank 0 too"), said.npos) << said;
  }
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
