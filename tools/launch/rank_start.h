#pragma once
// Starts ranks: what each of them is told, and the store by which they meet.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/store/hmac.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "tools/launch/line_relay.h"
#include "tools/launch/rank_process.h"
#include "tools/launch/supervise.h"
#include "tools/launch/survival.h"

namespace sherd {

/// One start of the ranks.
struct JobStart {
  std::string job;
  std::vector<int> slots;  // by rank
  int restart = 0;
  std::string saves = {};  // where an earlier one has saved, as it said
};

class RankStart {
 public:
  RankStart(const SuperviseOptions& options, const JobStart& start, const sigset_t& rank_mask)
      : options_(options), start_(start), rank_mask_(rank_mask) {}

  int num_ranks() const { return static_cast<int>(start_.slots.size()); }
  /// Starts a rank, whose output goes to `relay`. `survival` may be null. Error if the system refuses.
  std::unique_ptr<RankProcess> start(int rank, OutputRelay& relay, Survival* survival) const;
  /// Watches them by way of their store.
  std::unique_ptr<Survival> watch_replicas() const;
  /// Where ranks have saved, as they have said; empty if none has.
  std::string told_saves() const;

 private:
  std::vector<std::string> environment(int rank, Survival* survival) const;

  const SuperviseOptions& options_;
  const JobStart& start_;
  const sigset_t rank_mask_;
  const std::string secret_ = random_hex(32);
  const TcpStoreServer server_{{.secret = secret_}};
};

}  // namespace sherd
