#include "runtime/cuda/nccl/agreed_comms.h"

#include <algorithm>
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

constexpr char kWaited = '~';  // before the text of a rank that has only waited for others

// The error of a rank on all of them: one that says more than that others have not come, if there is one.
void throw_first(ProcessGroup& host, const std::string& own) {
  const std::vector<std::string> failures = gather_text(host, own);
  const auto is_cause = [](const std::string& text) { return !text.empty() && text[0] != kWaited; };
  auto first = std::ranges::find_if(failures, is_cause);
  if (first == failures.end()) first = std::ranges::find_if(failures, [](const auto& text) { return !text.empty(); });
  if (first == failures.end()) return;
  const std::string text = first->substr(is_cause(*first) ? 0 : 1);
  throw CommError(*first == own ? text : fmt::format("rank {}: {}", first - failures.begin(), text));
}

}  // namespace

std::vector<std::shared_ptr<QueueComm>> make_comms(const NcclApi& api, ProcessGroup& host,
                                                   std::span<const QueueCommOptions> options) {
  agree(host, Facts{{"NCCL's version", version_text(api.version)}},
        {.what = fmt::format("ranks of {} cannot talk by NCCL", host.name()),
         .remedy = "install one release for all, or name it by SHERD_NCCL_LIB"});
  const std::vector<UniqueId> ids = shared_ids(api, host, options.size());
  std::vector<std::shared_ptr<QueueComm>> comms;
  std::string failure;
  try {
    for (std::size_t i = 0; i < ids.size(); ++i)
      comms.push_back(std::make_shared<QueueComm>(api, ids[i], host.size(), host.rank(), options[i]));
  } catch (const NotCome& error) { failure = kWaited + error.message(); } catch (const Error& error) {
    failure = error.message();
  }
  throw_first(host, failure);
  return comms;
}

}  // namespace sherd::cuda::nccl
