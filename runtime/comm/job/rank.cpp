// Launchers differ in the names of their variables and in nothing else that matters here, so that they are rows of a
// table. Only Slurm's count of ranks per host needs code: it comes as a list over hosts, "4(x2),3".
#include "runtime/comm/job/rank.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/comm/store/hmac.h"
#include "runtime/comm/store/rendezvous_file.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/tensor/error.h"

namespace sherd {
namespace {

/// Any of `marks` set: this launcher started us, and all of rank... must be there.
struct Launcher {
  const char* source;
  const char *rank, *world_size, *local_rank, *local_world_size;
  std::vector<const char*> marks;
};

const char* const kSlurmPerHost = "SLURM_STEP_TASKS_PER_NODE";

std::array<Launcher, 4> launchers(const Environment& environment) {
  // In a batch script SLURM_PROCID is set without a step: nobody started several of us there.
  const bool in_step = environment("SLURM_PROCID") && environment("SLURM_STEP_ID");
  const char* slurm_size = environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const auto row = [](const char* source, const char* rank, const char* size, const char* local_rank,
                      const char* local_size) {
    return Launcher{source, rank, size, local_rank, local_size, {rank, size, local_rank, local_size}};
  };
  std::array<Launcher, 4> rows = {
      row("sherd run", "SHERD_RANK", "SHERD_WORLD_SIZE", "SHERD_LOCAL_RANK", "SHERD_LOCAL_WORLD_SIZE"),
      row("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
      row("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE"),
      row("Slurm", "SLURM_PROCID", slurm_size, "SLURM_LOCALID", kSlurmPerHost)};
  rows[3].marks = in_step ? std::vector<const char*>{"SLURM_PROCID"} : std::vector<const char*>{};
  return rows;
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int read_number(const Environment& environment, const Launcher& launcher, const char* name) {
  const char* text = environment(name);
  check(text, "{} is not set, but other variables of {} are; set all of {}, {}, {} and {}, or none", name,
        launcher.source, launcher.rank, launcher.world_size, launcher.local_rank, launcher.local_world_size);
  const std::optional<int> value = parse_number(text);
  check(value.has_value(), "{}='{}' is no integer", name, text);
  return *value;
}

/// The entry for host `host` of "4(x2),3", which stands for 4, 4, 3.
std::optional<int> entry_of_host(std::string_view list, int host) {
  while (!list.empty() && host >= 0) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    int repeat = 1;
    if (const std::size_t open = item.find("(x"); open != item.npos) {
      if (item.back() != ')') return std::nullopt;
      const auto times = parse_number(item.substr(open + 2, item.size() - open - 3));
      if (!times || *times < 1) return std::nullopt;
      repeat = *times;
      item = item.substr(0, open);
    }
    if (host < repeat) return parse_number(item);
    host -= repeat;
  }
  return std::nullopt;
}

int read_slurm_local_size(const Environment& environment, const Launcher& launcher) {
  const char* list = environment(kSlurmPerHost);
  check(list, "{} is not set, but {} is; start the program by srun", kSlurmPerHost, launcher.rank);
  const int host = environment("SLURM_NODEID") ? read_number(environment, launcher, "SLURM_NODEID") : 0;
  const std::optional<int> size = entry_of_host(list, host);
  check(size.has_value(), "{}='{}' has no number of tasks for host {} (SLURM_NODEID)", kSlurmPerHost, list, host);
  return *size;
}

void check_ranges(const RankInfo& info, const Launcher& launcher) {
  check(info.world_size >= 1, "{}={}: there must be at least 1 rank", launcher.world_size, info.world_size);
  check(info.rank >= 0 && info.rank < info.world_size, "{}={} is not in 0..{} ({}={})", launcher.rank, info.rank,
        info.world_size - 1, launcher.world_size, info.world_size);
  check(info.local_world_size >= 1 && info.local_world_size <= info.world_size, "{}={} is not in 1..{} ({}={})",
        launcher.local_world_size, info.local_world_size, info.world_size, launcher.world_size, info.world_size);
  check(info.local_rank >= 0 && info.local_rank < info.local_world_size, "{}={} is not in 0..{} ({}={})",
        launcher.local_rank, info.local_rank, info.local_world_size - 1, launcher.local_world_size,
        info.local_world_size);
}

std::optional<RankInfo> read_launcher(const Environment& environment, const Launcher& launcher) {
  bool found = false;
  for (const char* mark : launcher.marks) found = found || environment(mark);
  if (!found) return std::nullopt;
  RankInfo info;
  info.source = launcher.source;
  info.rank = read_number(environment, launcher, launcher.rank);
  info.world_size = read_number(environment, launcher, launcher.world_size);
  info.local_rank = read_number(environment, launcher, launcher.local_rank);
  info.local_world_size = launcher.local_world_size == kSlurmPerHost
                              ? read_slurm_local_size(environment, launcher)
                              : read_number(environment, launcher, launcher.local_world_size);
  check_ranges(info, launcher);
  return info;
}

bool same_place(const RankInfo& a, const RankInfo& b) {
  return a.rank == b.rank && a.world_size == b.world_size && a.local_rank == b.local_rank &&
         a.local_world_size == b.local_world_size;
}

/// srun started one task per host, and that task started us: its numbers count hosts.
bool is_nested_in(const RankInfo& inner, const RankInfo& outer) {
  return outer.source == "Slurm" && outer.local_world_size == 1 && outer.world_size <= inner.world_size;
}

std::string describe(const RankInfo& info, const Launcher& launcher) {
  return fmt::format("{} says rank {} of {}, on this host {} of {} ({}, {}, {}, {})", info.source, info.rank,
                     info.world_size, info.local_rank, info.local_world_size, launcher.rank, launcher.world_size,
                     launcher.local_rank, launcher.local_world_size);
}

/// What no two jobs that run on one host at the same time have in common.
std::string job_id(const Environment& environment, const RankInfo& info) {
  std::vector<const char*> names;
  // The restart count: workers that torchrun starts again must not meet those that it has just stopped.
  if (info.source == "sherd run") names = {"SHERD_JOB"};
  if (info.source == "torchrun")
    names = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"};
  if (info.source == "Open MPI") names = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};
  if (info.source == "Slurm") names = {"SLURM_JOB_ID", "SLURM_STEP_ID"};
  std::string job;
  for (const char* name : names)
    if (const char* value = environment(name)) job += fmt::format("-{}", value);
  return job.empty() ? job : info.source + job;
}

/// Of `sherd run`; torchrun starts ranks again too, but its ids need not be those of one job.
void read_restart(const Environment& environment, RankInfo* info) {
  info->full_world_size = info->world_size;
  if (info->source != "sherd run") return;
  const auto read = [&](const char* name, int least, int* value) {
    const char* text = environment(name);
    if (!text) return;
    const std::optional<int> number = parse_number(text);
    check(number && *number >= least, "{}='{}' is no integer of at least {}", name, text, least);
    *value = *number;
  };
  read("SHERD_RESTART", 0, &info->restart);
  info->saves = text_of(environment, "SHERD_SAVES");
  read("SHERD_FULL_WORLD_SIZE", info->world_size, &info->full_world_size);
  read("SHERD_SURVIVE", 0, &info->life);
  read("SHERD_GENERATION", 0, &info->generation);
}

void read_store(const Environment& environment, RankInfo* info) {
  info->secret = text_of(environment, "SHERD_SECRET");
  info->runtime_folder = text_of(environment, "XDG_RUNTIME_DIR");
  const char* store = environment("SHERD_STORE");
  check(store || info->source != "sherd run", "SHERD_STORE is not set, but SHERD_RANK is; start ranks by `sherd run`");
  if (!store) return;
  const std::string_view text = store;
  const std::size_t colon = text.rfind(':');
  const std::optional<int> port = colon == text.npos ? std::nullopt : parse_number(text.substr(colon + 1));
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
  // So that no file with a secret in it is left, however the job ends from here on.
  void all_have_connected() override { published_.reset(); }

 private:
  TcpStoreServer server_;
  std::optional<PublishedAddress> published_;
  std::optional<TcpStore> client_;
};

bool is_loopback_name(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

RankInfo discover_rank(const Environment& environment) {
  RankInfo info;
  const Launcher* chosen = nullptr;
  const auto rows = launchers(environment);
  for (const Launcher& launcher : rows) {
    const std::optional<RankInfo> found = read_launcher(environment, launcher);
    if (!found) continue;
    if (!chosen) {
      info = *found;
      chosen = &launcher;
      continue;
    }
    check(same_place(info, *found) || is_nested_in(info, *found),
          "two launchers disagree: {}, but {}; unset the variables of the one that did not start this program",
          describe(info, *chosen), describe(*found, launcher));
  }
  info.job = job_id(environment, info);
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
    client.host = rank.store_host;
    client.port = rank.store_port;
    if (!hosts) return std::make_unique<TcpStore>(client);
    // The name by which other hosts know this one need not be an address of ours (containers, /etc/hosts), so that
    // the server listens on all of them.
    TcpStoreServerOptions server{.host = rank.store_host, .port = rank.store_port, .secret = rank.secret};
    if (!is_loopback_name(rank.store_host)) {
      server.host = rank.store_host.find(':') == std::string::npos ? "0.0.0.0" : "::";
      client.host = rank.store_host.find(':') == std::string::npos ? "127.0.0.1" : "::1";
    }
    return std::make_unique<HostedStore>(rank, server, client);
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
    return std::make_unique<HostedStore>(rank, TcpStoreServerOptions{.secret = client.secret}, client);
  }
  const StoreAddress address = await_address(rendezvous_folder(rank.runtime_folder), rank.job, deadline, notice);
  client.port = address.port;
  client.secret = address.secret;
  return std::make_unique<TcpStore>(client);
}

std::unique_ptr<Store> connect_store(const RankInfo& rank) { return connect_store(rank, std::chrono::seconds(300)); }

}  // namespace sherd
