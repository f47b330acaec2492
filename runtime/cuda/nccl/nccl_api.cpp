#include "runtime/cuda/nccl/nccl_api.h"

#include <fmt/format.h>

#include "runtime/os/settings.h"
#include "runtime/tensor/error.h"

namespace sherd::cuda::nccl {

namespace {

Library find_library() {
  return Library(
      "libnccl.so.2",
      {.variable = "SHERD_NCCL_LIB", .asked = requested_nccl_library(), .wheel = "nvidia/nccl/lib/libnccl.so.2"});
}

// What a user can do about a result, where anything can be said without knowing more.
struct Remedy {
  Result result;
  const char* text;
};
constexpr Remedy kRemedies[] = {
    {Result::unhandled_cuda_error,
     "`sherd info` says whether the driver is new enough for this NCCL and which devices "
     "this process sees; --group staged moves the bytes through the host"},
    {Result::system_error,
     "NCCL_DEBUG=WARN says which system call failed; NCCL_SOCKET_IFNAME names the network to use, "
     "and /dev/shm must have room"},
    {Result::internal_error, "NCCL_DEBUG=WARN says what NCCL found"},
    {Result::remote_error, "another rank failed or left: its own error says why"},
};

const char* remedy_for(Result result) {
  for (const Remedy& remedy : kRemedies)
    if (remedy.result == result) return remedy.text;
  return nullptr;
}

}  // namespace

std::vector<Binding> required_functions(NcclApi& api) {
  return {{"ncclGetVersion", &api.get_version},
          {"ncclGetUniqueId", &api.get_unique_id},
          {"ncclGetErrorString", &api.error_string},
          {"ncclGetLastError", &api.last_error},
          {"ncclCommInitRankConfig", &api.init_rank},
          {"ncclCommSplit", &api.split},
          {"ncclCommFinalize", &api.finalize},
          {"ncclCommDestroy", &api.destroy},
          {"ncclCommAbort", &api.abort},
          {"ncclCommGetAsyncError", &api.async_error},
          {"ncclGroupStart", &api.group_start},
          {"ncclGroupEnd", &api.group_end},
          {"ncclAllReduce", &api.all_reduce},
          {"ncclAllGather", &api.all_gather},
          {"ncclReduceScatter", &api.reduce_scatter},
          {"ncclBroadcast", &api.broadcast},
          {"ncclReduce", &api.reduce},
          {"ncclSend", &api.send},
          {"ncclRecv", &api.recv},
          {"ncclRedOpCreatePreMulSum", &api.create_pre_mul_sum},
          {"ncclRedOpDestroy", &api.destroy_op}};
}

std::vector<OptionalBinding> optional_functions(NcclApi& api) {
  return {{{"ncclCommRevoke", &api.revoke}, 22807, "after a fault communicators are aborted at once"},
          {{"ncclMemAlloc", &api.allocate}, 21900, "no memory that NCCL can register"},
          {{"ncclMemFree", &api.free}, 21900, ""},
          {{"ncclCommInitRankScalable", &api.init_rank_scalable}, 22304, "thousands of ranks start by one address"}};
}

// A function counts as there from its release on: a build of an older release may carry a draft of it.
NcclApi::NcclApi(Library opened) : library(std::move(opened)) {
  library.bind({{"ncclGetVersion", &get_version}});
  if (!library.usable()) return;
  if (get_version(&version) != Result::success) {
    library.refuse(library.path() + " does not tell its version");
  } else if (version < kOldestVersion) {
    library.refuse(fmt::format("{} is version {}, {} or newer is needed", library.path(), version_text(version),
                               version_text(kOldestVersion)));
  }
  library.bind(required_functions(*this));
  for (const OptionalBinding& optional : optional_functions(*this)) {
    if (version >= optional.since && library.bind_optional(optional.binding)) continue;
    if (!*optional.lacks) continue;
    missing += fmt::format("{}{} (since {}): {}", missing.empty() ? "" : ", ", optional.binding.name,
                           version_text(optional.since), optional.lacks);
  }
}

std::string NcclApi::describe() const {
  if (!library.usable()) return library.describe("");
  return library.describe(version_text(version)) + (missing.empty() ? "" : "; without " + missing);
}

std::string NcclApi::text_of(Result result, Comm comm) const {
  const char* const why = last_error(comm);
  return fmt::format("{}{}{}", error_string(result), why && *why ? ": " : "", why ? why : "");
}

std::string NcclApi::explain(Result result, Comm comm) const {
  const char* const remedy = remedy_for(result);
  return text_of(result, comm) + (remedy ? std::string("; ") + remedy : "");
}

const NcclApi& nccl_api() {
  static const NcclApi instance(find_library());
  return instance;
}

void check_nccl(const NcclApi& api, Result result, std::string_view what, Comm comm) {
  if (result == Result::success) [[likely]]
    return;
  throw Error(fmt::format("NCCL {}: {}: {}", version_text(api.version), what, api.explain(result, comm)));
}

}  // namespace sherd::cuda::nccl
