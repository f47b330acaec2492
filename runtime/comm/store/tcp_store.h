#pragma once
// The client end of the TCP store: what every rank talks to while ranks find each other (store.h says what the
// calls mean). The server end is tcp_store_server.h; how they speak is store_wire.h.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/comm/group/wait_notice.h"
#include "runtime/comm/store/store.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  /// The one the server was given. Empty works on loopback only.
  std::string secret = {};
  /// How long to keep trying to connect: the host of the store may start later than this rank.
  std::chrono::milliseconds connect_deadline{300'000};
  /// Limit on one set() or add(), which wait for nothing but the server's answer, and on a get() that is to wait for
  /// less: the process with the server may be stopped for a while.
  std::chrono::milliseconds call_deadline{30'000};
  /// How long after the deadline of a get() its answer may take.
  std::chrono::milliseconds answer_time{5'000};
  /// Reports a connection that takes long.
  WaitNotice notice = {};
};

/// One connection. Values set by add() read as decimal text, so get() waits for a counter too. Keys of 1 to 256
/// bytes, values up to 1 MiB, else Error. A secret that does not match is an Error, as is add() on a value that is
/// no integer; no connection in time, a key that nobody sets in time (KeyNotSet) and a lost server are a CommError.
/// After a lost server, or a server that did not answer in time, every later call fails with the same reason; after a
/// key that did not come the store stays usable. Calls block; calls from several threads take turns.
class TcpStore final : public Store, NoCopy {
 public:
  /// Blocks until connected. A host name is looked up with the system's resolver, which has time limits of its own.
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  void erase(std::string_view key) override;
  void set_at_end(std::string_view key, std::string_view value) override;

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace sherd
