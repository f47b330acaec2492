#include "runtime/cuda/nccl/agreed_comms.h"

#include <cstring>

#include <fmt/format.h>

#include "runtime/comm/group/agree.h"

namespace sherd::cuda::nccl {

namespace {

// The ids of rank 0, on all ranks.
std::vector<UniqueId> shared_ids(const NcclApi& api, ProcessGroup& host, std::size_t count) {
  std::vector<UniqueId> ids(count);
  together(host, [&] {
    for (UniqueId& id : ids)
      if (host.rank() == 0) check_nccl(api, api.get_unique_id(&id), "making a unique id");
  });
  const std::string_view own(reinterpret_cast<const char*>(ids.data()), count * sizeof(UniqueId));
  const std::string theirs = gather_text(host, host.rank() == 0 ? own : "").front();
  std::memcpy(ids.data(), theirs.data(), theirs.size());
  return ids;
}

}  // namespace

std::vector<std::shared_ptr<QueueComm>> make_comms(const NcclApi& api, ProcessGroup& host,
                                                   std::span<const QueueCommOptions> options) {
  agree(host, Facts{{"NCCL's version", version_text(api.version)}},
        {.what = fmt::format("ranks of {} cannot talk by NCCL", host.name()),
         .remedy = "install one release for all, or name it by SHERD_NCCL_LIB"});
  const std::vector<UniqueId> ids = shared_ids(api, host, options.size());
  std::vector<std::shared_ptr<QueueComm>> comms;
  together(host, [&] {
    for (std::size_t i = 0; i < ids.size(); ++i)
      comms.push_back(std::make_shared<QueueComm>(api, ids[i], host.size(), host.rank(), options[i]));
  });
  return comms;
}

}  // namespace sherd::cuda::nccl
