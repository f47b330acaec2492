// A TCP store whose server is stopped for a while, or for good.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/tensor/error.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

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
    options.answer_time = 10ms;
    return options;
  }
  void stop() const {
    ::kill(process_, SIGSTOP);
    ::waitpid(process_, nullptr, WUNTRACED);
  }
  void go_on() const { ::kill(process_, SIGCONT); }

 private:
  pid_t process_ = -1;
  int port_ = 0;
};

// A call that waits for no key waits for a server that is stopped for a while, like a launcher after Ctrl-Z.
TEST(TcpStore, ACallOutlivesAServerThatIsStoppedForAWhile) {
  const ServerProcess server;
  TcpStore store(server.client());
  server.stop();
  std::thread user([&] {
    for (const auto until = Clock::now() + 300ms; Clock::now() < until;) std::this_thread::yield();
    server.go_on();
  });
  EXPECT_THROW(store.get("ghost", 0ms), KeyNotSet);
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
