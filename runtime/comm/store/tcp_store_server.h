#pragma once
// The server end of the TCP store: a map from keys to values behind one thread, hosted by the launcher or rank 0.
#include <chrono>
#include <memory>
#include <string>

#include "runtime/tensor/no_copy.h"

namespace sherd {

struct TcpStoreServerOptions {
  /// An address of this host. Anything but loopback needs a secret. "0.0.0.0" or "::" are all addresses.
  std::string host = "127.0.0.1";
  /// 0: the system picks a free one; see port().
  int port = 0;
  std::string secret = {};
  /// A connection beyond these is told that the store is full; clients try again.
  int max_connections = 4096;
  /// Connections that have not proved the secret yet, at most: one more cuts off the oldest of them. A rank proves it
  /// in a moment, and one that is cut off tries again, so nobody who only connects can keep ranks out.
  int max_unproven = 64;
  /// A peer that does not prove its secret, finish a request it began, or take a reply in this time is cut off.
  /// Idle connections may stay; TCP keepalive finds those whose host is gone.
  std::chrono::milliseconds peer_deadline{10'000};
};

/// Listens from construction to destruction; destruction closes every connection at once, so that waiting clients
/// get a CommError. A port in use, an address that is not ours and a missing secret are an Error.
class TcpStoreServer : NoCopy {
 public:
  explicit TcpStoreServer(const TcpStoreServerOptions& options);
  ~TcpStoreServer();

  int port() const;

 private:
  struct Service;
  std::unique_ptr<Service> service_;
};

}  // namespace sherd
