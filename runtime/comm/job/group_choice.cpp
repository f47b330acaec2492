#include "runtime/comm/job/group_choice.h"

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/device_group.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/comm/hosts/store_group.h"
#include "runtime/comm/job/hosts.h"
#include "runtime/comm/job/rank_info.h"
#include "runtime/exec/backend.h"
#include "runtime/exec/context.h"
#include "runtime/os/host_name.h"
#include "runtime/os/settings.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/quantity.h"

namespace sherd {

namespace {

using Kind = GroupChoice::Kind;

// By Kind.
constexpr std::array<std::string_view, 5> kNames{"auto", "shm", "thread", "nccl", "staged"};

struct DeviceFacts {
  std::string uuid, nccl;  // the latter a version, or "none"
  Facts alike;             // what must be the same for ranks that compute together
};

DeviceFacts facts_of(Device device) {
  constexpr std::string_view kAlike[] = {"CUDA runtime", "driver", "cuBLASLt", "cuDNN"};
  DeviceFacts facts;
  for (const auto& [name, value] : backend_of(device).facts()) {
    if (name == to_string(device)) {
      const std::size_t uuid = value.rfind(", ");
      check(uuid != value.npos, "{}: {}", name, value);
      facts.uuid = value.substr(uuid + 2);
      facts.alike.emplace_back("the GPU", value.substr(0, uuid));
    } else if (name == "NCCL") {
      facts.nccl = value.substr(0, value.find_first_of(",:"));
    } else if (name == "kernels") {
      facts.alike.emplace_back("the code of kernels", value);
    } else if (std::ranges::find(kAlike, name) != std::end(kAlike)) {
      facts.alike.emplace_back(name, value.substr(0, value.find_first_of(",:")));  // without its path
    }
  }
  return facts;
}

// Returns this rank's. Errors are the same on all ranks.
DeviceFacts compare_devices(ProcessGroup& host, Device device) {
  DeviceFacts facts;
  together(host, [&] { facts = facts_of(device); });
  agree(
      host, facts.alike,
      {"ranks compute on unlike devices, or with other libraries",
       "start them where both are the same (CUDA_VISIBLE_DEVICES hides devices; `sherd info` lists what a host has)"});
  return facts;
}

// Why the ranks have no group over NCCL: the reason of the lowest that has none. The same on all.
std::string why_no_library(ProcessGroup& host, Device device) {
  const std::vector<std::string> reasons = gather_text(host, why_no_device_group(device));
  for (const std::size_t r : indices(reasons))
    if (!reasons[r].empty()) return fmt::format("rank {} has none: {}", r, reasons[r]);
  return {};
}

// NCCL 2.30 and newer take several ranks on one device, by request.
bool takes_shared_devices(std::string_view nccl) {
  const std::size_t dot = nccl.find('.');
  if (dot == nccl.npos || text_of(process_environment(), "NCCL_MULTI_RANK_GPU_ENABLE") != "1") return false;
  const auto major = number_of<int>(nccl.substr(0, dot));
  const auto minor = number_of<int>(nccl.substr(dot + 1, nccl.find('.', dot + 1) - dot - 1));
  return major && minor && std::pair(*major, *minor) >= std::pair(2, 30);
}

ChosenGroup over_library(std::shared_ptr<ProcessGroup> host, Device device, std::string_view version,
                         const Sums& sums) {
  std::shared_ptr<ProcessGroup> group = make_device_group(std::move(host), {.device = device, .sums = sums.by()});
  const bool is_ordered = group->abilities().ordered_sum;
  return {std::move(group),
          fmt::format("memory of GPUs by NCCL {}, sums {}", version, is_ordered ? "ordered" : "fast")};
}

// Kernels of two ranks on one device wait for each other's collectives, and it is a slip more often than not. Ranks
// that NCCL is told to take for those of several hosts (NCCL_HOSTID) are no slip.
void check_own_devices(ProcessGroup& host, Device device, const std::string& uuid) {
  const std::string told = text_of(process_environment(), "NCCL_HOSTID");
  const std::vector<std::string> uuids =
      gather_text(host, told.empty() ? uuid : fmt::format("{} of NCCL_HOSTID {}", uuid, told));
  const std::vector<std::string> places =
      gather_text(host, fmt::format("{} of host {}", to_string(device), host_name()));
  std::map<std::string_view, std::size_t> first;
  for (const std::size_t r : indices(uuids)) {
    const auto [other, is_new] = first.emplace(uuids[r], r);
    check(is_new,
          "ranks {} and {} compute on one device, {} ({}): start as many ranks as a host shows devices "
          "(CUDA_VISIBLE_DEVICES), or pass --group staged",
          other->second, r, places[r], uuids[r]);
  }
}

}  // namespace

GroupChoice::GroupChoice(std::string_view text) {
  const auto found = std::ranges::find(kNames, text);
  check(found != kNames.end(), "group must be one of {}, got \"{}\"", fmt::join(kNames, ", "), text);
  kind_ = static_cast<Kind>(found - kNames.begin());
}

std::string GroupChoice::text() const { return std::string(kNames[static_cast<std::size_t>(kind_)]); }

Sums::Sums(std::string_view text) : text_(text) {
  check(text == "auto" || text == "ordered" || text == "fast", "sums must be one of auto, ordered, fast, got \"{}\"",
        text);
}

std::optional<SumsBy> Sums::by() const {
  if (text_ == "auto") return std::nullopt;
  return text_ == "fast" ? SumsBy::fast : SumsBy::ordered;
}

Device device_of_rank(Device asked, const ProcessGroup& group) {
  if (!asked.has_backend() || group.size() == 1 || RankContext::current().is_ghost()) return asked;
  const RankInfo own = discover_rank();
  const bool are_threads = own.source == "none" || group.kind() == "thread";
  const int local = are_threads ? group.rank() : own.local_rank;
  const int visible = backend_of(asked).num_devices();
  if (asked.index >= visible) return asked;  // whoever opens it says what there is
  return Device::cuda(static_cast<std::uint8_t>(asked.index + local % (visible - asked.index)));
}

void check_hosts(Device device) {
  const RankInfo own = discover_rank();
  check(
      device.has_backend() || !has_other_hosts(own),
      "rank {} of {} runs on host {} with {} of them, and computes on {}: ranks on CPUs train through memory that they "
      "share; start all {} on one host, by options of the launcher or by `sherd run -n {}`, or train on GPUs (--device "
      "cuda) ({})",
      own.rank, own.world_size, host_name(), own.local_world_size, to_string(device), own.world_size, own.world_size,
      own.description);
}

ChosenGroup chosen_group(std::shared_ptr<ProcessGroup> host, Device device, const GroupChoice& choice,
                         const Sums& sums) {
  const Kind kind = choice.kind();
  if (!device.has_backend()) {
    check(kind != Kind::nccl && kind != Kind::staged,
          "group = {} moves memory of GPUs, and the ranks compute on {}: leave it out, or pass --device cuda",
          choice.text(), to_string(device));
    check(host->kind() != kStoreGroupKind,
          "{} ranks on CPUs of several hosts, of which this is {}: they share no memory, and tensors of CPUs move "
          "through it alone; start all on one host, or train on GPUs (--device cuda)",
          host->size(), host_name());
    return {std::move(host), ""};
  }
  if (host->size() == 1 || RankContext::current().is_ghost()) return {std::move(host), ""};
  check(kind != Kind::shm,
        "group = shm moves memory of the host, and the ranks compute on {}: leave it out, or give nccl or staged",
        to_string(device));
  const DeviceFacts facts = compare_devices(*host, device);
  const std::string missing = kind == Kind::staged ? std::string() : why_no_library(*host, device);
  check(kind != Kind::nccl || missing.empty(), "group = nccl, and {}; leave --group out to train without it", missing);
  if (kind != Kind::staged && (!missing.empty() || !takes_shared_devices(facts.nccl)))
    check_own_devices(*host, device, facts.uuid);
  if (kind != Kind::staged && missing.empty()) return over_library(std::move(host), device, facts.nccl, sums);
  check(host->kind() != kStoreGroupKind,
        "GPUs of several hosts move their memory by NCCL alone{}: the store of the job, which their hosts share, is no "
        "way for tensors; {}",
        missing.empty() ? "" : ", and " + missing,
        missing.empty() ? "leave --group staged out" : "install it on every host");
  check(sums.by() != SumsBy::fast,
        "sums = fast is the order of NCCL, and memory of GPUs goes through the host{}; leave it out",
        missing.empty() ? "" : ": " + missing);
  return {make_staged_group(std::move(host)),
          fmt::format("memory of GPUs through the host (staged{})", missing.empty() ? "" : ": " + missing)};
}

}  // namespace sherd
