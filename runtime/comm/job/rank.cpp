#include "runtime/comm/job/rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/comm/job/hosts.h"
#include "runtime/comm/job/launchers.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/comm/store/rendezvous_file.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/os/host_name.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd {
namespace {

/// Reads the variables of `sherd run` alone: torchrun starts ranks again too, but its ids need not be those of one job.
void read_restart(const Environment& environment, RankInfo* info) {
  info->full_world_size = info->world_size;
  if (info->source != "sherd run") return;
  const auto read = [&](const char* name, int least, int* value) {
    const char* text = environment(name);
    if (!text) return;
    const std::optional<int> number = number_of<int>(text);
    check(number && *number >= least, "{}='{}' is no integer of at least {}", name, text, least);
    *value = *number;
  };
  read("SHERD_RESTART", 0, &info->restart);
  info->saves = text_of(environment, "SHERD_SAVES");
  read("SHERD_FULL_WORLD_SIZE", info->world_size, &info->full_world_size);
  read("SHERD_SURVIVE", 0, &info->life);
  read("SHERD_GENERATION", 0, &info->generation);
}

/// Under torchrun rank 0 is on the host that MASTER_ADDR names; MASTER_PORT is torchrun's own.
void read_master(const Environment& environment, RankInfo* info) {
  if (text_of(environment, "MASTER_ADDR").empty()) return;
  const std::string asked = text_of(environment, "SHERD_PORT"), masters = text_of(environment, "MASTER_PORT");
  const std::optional<int> port = number_of<int>(asked.empty() ? masters : asked);
  const int own = port.value_or(0) + (asked.empty() ? 1 : 0);
  check(port && own >= 1 && own <= 65535,
        "{}='{}': set SHERD_PORT to a free port in 1..65535 of the host that MASTER_ADDR names, the same on all ranks",
        asked.empty() ? "MASTER_PORT" : "SHERD_PORT", asked.empty() ? masters : asked);
  info->store_host = text_of(environment, "MASTER_ADDR");
  info->store_port = own;
}

void read_store(const Environment& environment, RankInfo* info) {
  info->secret = text_of(environment, "SHERD_SECRET");
  info->runtime_folder = text_of(environment, "XDG_RUNTIME_DIR");
  const char* store = environment("SHERD_STORE");
  check(store || info->source != "sherd run", "SHERD_STORE is not set, but SHERD_RANK is; start ranks by `sherd run`");
  if (!store && info->source == "torchrun" && has_other_hosts(*info)) return read_master(environment, info);
  if (!store) return;
  const std::string_view text = store;
  const std::size_t colon = text.rfind(':');
  const std::optional<int> port = colon == text.npos ? std::nullopt : number_of<int>(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon == text.npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  check(!host.empty() && port && *port >= 1 && *port <= 65535,
        "SHERD_STORE='{}' is not host:port with a port in 1..65535", text);
  info->store_host = host;
  info->store_port = *port;
}

/// What rank 0 keeps. Its members end in reverse order: the client, the file, the server.
class HostedStore final : public Store {
 public:
  HostedStore(const RankInfo& rank, TcpStoreServerOptions server_options, TcpStoreOptions client_options)
      : server_(server_options) {
    if (rank.store_host.empty() && rank.world_size > 1)
      published_.emplace(rendezvous_folder(rank.runtime_folder), rank.job,
                         StoreAddress{server_.port(), server_options.secret});
    client_options.port = server_.port();
    client_.emplace(client_options);
  }
  void set(std::string_view key, std::string_view value) override { client_->set(key, value); }
  std::string get(std::string_view key, std::chrono::milliseconds deadline) override {
    return client_->get(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return client_->add(key, amount); }
  void erase(std::string_view key) override { client_->erase(key); }
  void set_at_end(std::string_view key, std::string_view value) override { client_->set_at_end(key, value); }
  // So that no file with a secret in it is left, however the job ends from here on.
  void all_have_connected() override { published_.reset(); }

 private:
  TcpStoreServer server_;
  std::optional<PublishedAddress> published_;
  std::optional<TcpStore> client_;
};

/// Called where a process that is rank 0 cannot host the store, by its options for a client. If there is one of the
/// same job it is told, and what this one adds to its error is returned.
std::string tell_other_host(const RankInfo& rank, TcpStoreOptions client) {
  client.connect_deadline = std::chrono::seconds(1);
  client.notice = {};
  try {
    if (rank.store_host.empty()) {
      const StoreAddress other = await_address(rendezvous_folder(rank.runtime_folder), rank.job, {});
      client.port = other.port;
      client.secret = other.secret;
    }
    TcpStore(client).set(kStartTrouble,
                         fmt::format("process {} on host {} says it is rank 0 too: give each rank a number of its own, "
                                     "and each job a store of its own (SHERD_STORE)",
                                     ::getpid(), host_name()));
    return "; a process there hosts a store with the same secret: are two processes of the job rank 0?";
  } catch (const Error&) { return {}; }  // it is another program, or another job
}

std::unique_ptr<Store> host_store(const RankInfo& rank, const TcpStoreServerOptions& server, TcpStoreOptions client) {
  try {
    return std::make_unique<HostedStore>(rank, server, client);
  } catch (const Error& error) {
    if (rank.world_size == 1) throw;
    throw Error(error.message() + tell_other_host(rank, std::move(client)));
  }
}

bool is_loopback_name(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// Rank 0 may host the store, which then listens on all addresses: the name by which other hosts know this one need not
/// be an address of ours (containers, /etc/hosts).
std::string host_of_store(const RankInfo& rank) {
  if (rank.rank != 0 || rank.source == "sherd run" || is_loopback_name(rank.store_host)) return rank.store_host;
  return rank.store_host.find(':') == std::string::npos ? "127.0.0.1" : "::1";
}

void check_secret(const RankInfo& rank) {
  check(
      !rank.secret.empty() || !has_other_hosts(rank),
      "rank {} of {} runs on host {} with {} of them, and SHERD_SECRET is not set: ranks of several hosts show each "
      "other that they are of one job by a secret, the same on all ranks; set it in the environment, to what `openssl "
      "rand -hex 16` prints ({})",
      rank.rank, rank.world_size, host_name(), rank.local_world_size, rank.description);
}

}  // namespace

RankInfo discover_rank(const Environment& environment) {
  RankInfo info = read_launchers(environment);
  read_restart(environment, &info);
  read_store(environment, &info);
  return info;
}

RankInfo discover_rank() { return discover_rank(process_environment()); }

std::unique_ptr<Store> connect_store(const RankInfo& rank, std::chrono::milliseconds deadline,
                                     const WaitNotice& notice) {
  TcpStoreOptions client;
  client.notice = notice;
  client.connect_deadline = deadline;
  client.call_deadline = std::max(client.call_deadline, deadline);
  client.secret = rank.secret;
  const bool hosts = rank.rank == 0 && rank.source != "sherd run";
  if (!rank.store_host.empty()) {
    check_secret(rank);
    client.host = host_of_store(rank);
    client.port = rank.store_port;
    if (!hosts) return std::make_unique<TcpStore>(client);
    TcpStoreServerOptions server{.host = rank.store_host, .port = rank.store_port, .secret = rank.secret};
    if (!is_loopback_name(rank.store_host))
      server.host = rank.store_host.find(':') == std::string::npos ? "0.0.0.0" : "::";
    return host_store(rank, server, client);
  }
  check(rank.local_world_size == rank.world_size,
        "{} of the {} ranks run on this host: ranks on several hosts need SHERD_STORE=host:port, an address of rank "
        "0's host with a free port, and SHERD_SECRET, both the same on all ranks",
        rank.local_world_size, rank.world_size);
  check(rank.world_size == 1 || !rank.job.empty(),
        "{} gives no job id by which {} ranks could find each other; set SHERD_STORE=127.0.0.1:port on all of them",
        rank.source, rank.world_size);
  if (hosts) {
    client.secret = random_hex(16);
    return host_store(rank, {.secret = client.secret}, client);
  }
  const StoreAddress address = await_address(rendezvous_folder(rank.runtime_folder), rank.job, deadline, notice);
  client.port = address.port;
  client.secret = address.secret;
  return std::make_unique<TcpStore>(client);
}

std::unique_ptr<Store> connect_store(const RankInfo& rank) { return connect_store(rank, std::chrono::seconds(300)); }

std::unique_ptr<Store> join_store(const RankInfo& rank, std::chrono::milliseconds deadline) {
  return std::make_unique<TcpStore>(TcpStoreOptions{
      .host = host_of_store(rank), .port = rank.store_port, .secret = rank.secret, .connect_deadline = deadline});
}

}  // namespace sherd
