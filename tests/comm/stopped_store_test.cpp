// A TCP store whose server is stopped for a while, or for good.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/tensor/error.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;

const std::string kPassword = "open sesame";

/// A server in a process of its own, which can be stopped.
class ServerProcess {
 public:
  ServerProcess() {
    int ends[2];
    check(::pipe(ends) == 0, "no pipe");
    process_ = ::fork();
    check(process_ >= 0, "no process");
    if (process_ == 0) {
      const TcpStoreServer server({.secret = kPassword});
      const int port = server.port();
      if (::write(ends[1], &port, sizeof port) != sizeof port) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
    ::close(ends[0]);
  }
  ~ServerProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  TcpStoreOptions client() const {
    TcpStoreOptions options;
    options.port = port_;
    options.secret = kPassword;
    options.answer_time = 0ms;
    return options;
  }
  void stop() const {
    ::kill(process_, SIGSTOP);
    ::waitpid(process_, nullptr, WUNTRACED);
  }
  void go_on() const { ::kill(process_, SIGCONT); }
  /// Looks at all its connections in /proc/net/tcp: sl, local and remote address, state, tx_queue:rx_queue.
  bool has_unread_bytes() const {
    std::ifstream file("/proc/net/tcp");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues;
      words >> number >> local >> remote >> state >> queues;
      if (state == "01" && local.ends_with(fmt::format(":{:04X}", port_)) && !queues.ends_with(":00000000"))
        return true;
    }
    return false;
  }

 private:
  pid_t process_ = -1;
  int port_ = 0;
};

// A call that waits for no key waits for a server that is stopped for a while, like a launcher after Ctrl-Z.
TEST(TcpStore, ACallOutlivesAServerThatIsStoppedForAWhile) {
  const ServerProcess server;
  TcpStore store(server.client());
  server.stop();
  std::atomic<bool> has_answer = false;
  std::thread user([&] {
    EXPECT_THROW(store.get("ghost", 0ms), KeyNotSet);
    has_answer = true;
  });
  while (!server.has_unread_bytes() && !has_answer) std::this_thread::yield();
  server.go_on();
  user.join();
  store.set("a", "b");
  EXPECT_EQ(store.get("a", 1s), "b");
}

TEST(TcpStore, AServerThatStaysStoppedIsALostOne) {
  const ServerProcess server;
  TcpStoreOptions options = server.client();
  options.call_deadline = 50ms;
  TcpStore store(options);
  server.stop();
  const auto is_lost = [&](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "it answers";
    } catch (const KeyNotSet& error) { ADD_FAILURE() << error.message(); } catch (const CommError& error) {
      EXPECT_NE(error.message().find("no answer within"), std::string::npos) << error.message();
    }
  };
  is_lost([&] { store.get("ghost", 0ms); });
  server.go_on();
  is_lost([&] { store.get("ghost", 0ms); });
}

}  // namespace
}  // namespace sherd
