// NCCL's functions on the emulated GPU. Wrong use is an error here where NCCL might hang, or not notice.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "tests/support/emulated_nccl/member.h"

using namespace sherd::cuda;
using namespace sherd::cuda::nccl;
using namespace sherd::cuda::nccl::fake;

namespace {

struct Fake {
  Configuration configuration = default_configuration();
  HostOrder order;
  std::map<Comm, std::shared_ptr<Member>> live;
  std::uint64_t ids = 0;
};
Fake& the_fake() {
  static auto* made = new Fake;  // never destroyed: threads may still call at exit
  return *made;
}

struct GroupCall {
  std::shared_ptr<Member> communicator;
  Call call;
  emulated::Stream* stream;
};
// The group that this thread is making.
struct Group {
  int depth = 0;
  Result error = Result::success;
  std::vector<GroupCall> calls;
};
Group& group() {
  thread_local Group mine;
  return mine;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

Result refuse(Result result, const std::string& why) {
  last_error() = why;
  if (group().depth > 0 && group().error == Result::success) group().error = result;
  return result;
}

// The frame of every function that needs a device.
template <class Body>
Result api(const char* name, Body body) {
  Result result = Result::success;
  std::string why;
  const cudaError_t status = emulated::call(name, [&](emulated::Gpu& g) {
    try {
      result = body(g);
    } catch (const Refused& refused) {
      result = refused.result;
      why = refused.what();
    }
    return cudaSuccess;
  });
  if (status != cudaSuccess)
    return refuse(Result::unhandled_cuda_error, fmt::format("Cuda failure '{}'", cudaGetErrorString(status)));
  return why.empty() ? result : refuse(result, why);
}

std::shared_ptr<Member> find(Comm comm, const char* call) {
  const auto found = the_fake().live.find(comm);
  if (found == the_fake().live.end())
    throw Refused(Result::invalid_argument, fmt::format("{}: no communicator, or one that was destroyed", call));
  return found->second;
}

void need_version(int since, const char* name) {
  if (the_fake().configuration.version < since)
    throw Refused(Result::invalid_usage,
                  fmt::format("{} is not in {}", name, version_text(the_fake().configuration.version)));
}

void need_no_group(const char* name) {
  if (group().depth > 0) throw Refused(Result::invalid_usage, fmt::format("{} in a group is not emulated", name));
}

Settings read(const Config* config, const char* name) {
  const auto& configuration = the_fake().configuration;
  const Config ours = config_for(configuration.version);
  if (!config || config->magic != ours.magic || config->size > ours.size || config->size < config_for(0).size ||
      config->version > static_cast<unsigned>(configuration.version))
    throw Refused(Result::invalid_argument,
                  fmt::format("{}: a config of {} bytes and version {}, {} has {}", name, config ? config->size : 0,
                              config ? config->version : 0, version_text(configuration.version), ours.size));
  const bool is_named = config->size > offsetof(Config, comm_name) && config->comm_name;
  return {.blocking = config->blocking != 0, .name = is_named ? config->comm_name : ""};
}

// Gives a handle out only where the communicator may come to be used.
Result hand_out(std::shared_ptr<Member> made, Comm* comm) {
  const auto handle = reinterpret_cast<Comm>(made.get());
  the_fake().live[handle] = made;
  const Result result = made->complete();
  if (result != Result::success && result != Result::in_progress) {
    const std::string why = made->error();
    made->abort();
    the_fake().live.erase(handle);
    throw Refused(result, why);
  }
  *comm = handle;
  return result;
}

Result start(const char* name, Comm* comm, int world, const UniqueId& id, int rank, const Config* config) {
  return api(name, [&](emulated::Gpu& g) {
    need_no_group(name);
    *comm = nullptr;
    if (world < 1 || world > kMaxRanks || rank < 0 || rank >= world)
      throw Refused(Result::invalid_argument,
                    fmt::format("{}: rank {} of {}; up to {} are emulated", name, rank, world, kMaxRanks));
    auto made = std::make_shared<Member>(g, the_fake().configuration, the_fake().order, read(config, name));
    made->join(id, world, rank);
    return hand_out(std::move(made), comm);
  });
}

// Puts the calls of each communicator on its stream, as one item.
Result launch(std::vector<GroupCall> calls) {
  return api("ncclGroupEnd", [&](emulated::Gpu&) {
    std::vector<std::shared_ptr<Member>> order;
    std::map<Member*, std::vector<Call>> of;
    std::map<Member*, emulated::Stream*> on;
    for (const GroupCall& c : calls) {
      Member* const key = c.communicator.get();
      if (!of.contains(key)) order.push_back(c.communicator);
      if (on.emplace(key, c.stream).first->second != c.stream)
        throw Refused(Result::invalid_usage, "one communicator on two streams in a group is not emulated");
      of[key].push_back(c.call);
    }
    for (const auto& communicator : order) {
      const std::vector<Call>& mine = of[communicator.get()];
      if (mine.size() > kMaxCalls)
        throw Refused(Result::invalid_usage, fmt::format("a group of more than {} calls is not emulated", kMaxCalls));
      const auto [i, j] = overlapping(mine, communicator->rank(), communicator->world());
      if (i >= 0)
        throw Refused(
            Result::invalid_usage,
            fmt::format("calls {} and {} of a group touch the same bytes, and run in any order", i + 1, j + 1));
    }
    Result result = Result::success;
    for (const auto& communicator : order) {
      communicator->issue(std::move(of[communicator.get()]), *on[communicator.get()]);
      if (const Result mine = communicator->complete(); result == Result::success) result = mine;
    }
    return result;
  });
}

Result add(Comm comm, Call call, cudaStream_t stream) {
  const char* const name = name_of(call.signature.kind);
  if (group().depth > 0 && group().error != Result::success) return group().error;
  std::vector<GroupCall> alone;
  const Result result = api(name, [&](emulated::Gpu& g) {
    const auto communicator = find(comm, name);
    communicator->check_ready(name);
    communicator->check_call(call, g.find(stream));
    (group().depth > 0 ? group().calls : alone).push_back({communicator, call, g.find(stream)});
    return Result::success;
  });
  return result == Result::success && !alone.empty() ? launch(std::move(alone)) : result;
}

Call collective(Kind kind, const void* in, void* out, std::size_t count, DataType type, RedOp op = {}, int root = -1) {
  return {.signature = {kind, type, static_cast<std::uint32_t>(op), root, count},
          .in = static_cast<const std::byte*>(in),
          .out = static_cast<std::byte*>(out)};
}

template <class Call>
Result of_memory(const char* name, Call call) {
  const Result may = api(name, [&](emulated::Gpu&) {
    need_version(21900, name);
    return Result::success;
  });
  if (may != Result::success) return may;
  const cudaError_t status = call();
  return status == cudaSuccess ? Result::success : refuse(Result::unhandled_cuda_error, cudaGetErrorString(status));
}

constexpr const char* kTexts[] = {"no error",
                                  "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                  "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                  "internal error - please report this issue to the NCCL developers",
                                  "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                  "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                  "remote process exited or there was a network error",
                                  "NCCL operation in progress"};

}  // namespace

namespace sherd::cuda::nccl::fake {

Configuration default_configuration() {
  Configuration c;
  if (const char* text = std::getenv("SHERD_EMULATED_NCCL_VERSION"))
    c.version = static_cast<int>(std::strtol(text, nullptr, 10));
  if (const char* text = std::getenv("SHERD_EMULATED_NCCL_FAULT")) {
    char kind[20] = "";
    std::sscanf(text, "%19[^:]:%d:%lu", kind, &c.fault.rank, &c.fault.group);
    const std::map<std::string, Fault::Kind> kinds{{"hang", Fault::Kind::hang},
                                                   {"die", Fault::Kind::die},
                                                   {"error", Fault::Kind::error},
                                                   {"fail_init", Fault::Kind::fail_init}};
    c.fault.kind = kinds.at(kind);
  }
  return c;
}

void reset(const Configuration& configuration) {
  const std::lock_guard guard(emulated::gpu().lock);
  Fake& fake = the_fake();
  for (const auto& [handle, communicator] : fake.live) communicator->abort();
  fake.live.clear();
  fake.order = {};
  fake.configuration = configuration;
}

}  // namespace sherd::cuda::nccl::fake

extern "C" {

Result ncclGetVersion(int* version) {
  const std::lock_guard guard(emulated::gpu().lock);
  *version = the_fake().configuration.version;
  return Result::success;
}

Result ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard guard(emulated::gpu().lock);
  try {
    *id = make_id(emulated::gpu().configuration.seed * 1000 + ++the_fake().ids);
  } catch (const std::runtime_error& error) { return refuse(Result::system_error, error.what()); }
  return Result::success;
}

const char* ncclGetErrorString(Result result) {
  const auto i = static_cast<std::size_t>(result);
  return i < std::size(kTexts) ? kTexts[i] : "unknown result code";
}

// The thread's last refusal; the communicator's own error where there was none.
const char* ncclGetLastError(Comm comm) {
  const std::lock_guard guard(emulated::gpu().lock);
  const auto found = the_fake().live.find(comm);
  if (found != the_fake().live.end() && !found->second->error().empty()) last_error() = found->second->error();
  return last_error().c_str();
}

Result ncclCommInitRankConfig(Comm* comm, int num_ranks, UniqueId id, int rank, Config* config) {
  return start("ncclCommInitRankConfig", comm, num_ranks, id, rank, config);
}

Result ncclCommInitRankScalable(Comm* comm, int num_ranks, int rank, int num_ids, UniqueId* ids, Config* config) {
  constexpr const char* kName = "ncclCommInitRankScalable";
  const Result may = api(kName, [&](emulated::Gpu&) {
    need_version(22304, kName);
    if (num_ids < 1) throw Refused(Result::invalid_argument, "ncclCommInitRankScalable: no unique id");
    return Result::success;
  });
  return may == Result::success ? start(kName, comm, num_ranks, ids[0], rank, config) : may;
}

Result ncclCommSplit(Comm comm, int color, int key, Comm* made, Config* config) {
  constexpr const char* kName = "ncclCommSplit";
  return api(kName, [&](emulated::Gpu& g) {
    need_no_group(kName);
    *made = nullptr;
    const auto parent = find(comm, kName);
    parent->check_ready(kName, /*if_revoked=*/true);
    if (color < kNoColor) throw Refused(Result::invalid_argument, fmt::format("{}: color {}", kName, color));
    Settings settings = config ? read(config, kName) : parent->settings();
    auto child = std::make_shared<Member>(g, the_fake().configuration, the_fake().order, std::move(settings));
    child->split_from(parent, color, key);
    return color == kNoColor ? Result::success : hand_out(std::move(child), made);
  });
}

Result ncclCommFinalize(Comm comm) {
  return api("ncclCommFinalize", [&](emulated::Gpu&) {
    const auto communicator = find(comm, "ncclCommFinalize");
    communicator->check_ready("ncclCommFinalize");
    communicator->finalize();
    return communicator->complete();
  });
}

// What is on streams still runs.
Result ncclCommDestroy(Comm comm) {
  return api("ncclCommDestroy", [&](emulated::Gpu& g) {
    const auto communicator = find(comm, "ncclCommDestroy");
    if (!communicator->may_be_destroyed())
      throw Refused(Result::invalid_usage,
                    "ncclCommDestroy: an operation of the communicator is in progress; poll until "
                    "it has ended, or abort");
    if (!communicator->error().empty()) communicator->abort();
    if (communicator->last()) g.complete(communicator->last());
    the_fake().live.erase(comm);
    return Result::success;
  });
}

// Also of a lost device.
Result ncclCommAbort(Comm comm) {
  const std::lock_guard guard(emulated::gpu().lock);
  try {
    find(comm, "ncclCommAbort")->abort();
  } catch (const Refused& refused) { return refuse(refused.result, refused.what()); }
  the_fake().live.erase(comm);
  return Result::success;
}

Result ncclCommRevoke(Comm comm, int flags) {
  return api("ncclCommRevoke", [&](emulated::Gpu&) {
    need_version(22807, "ncclCommRevoke");
    if (flags != 0) throw Refused(Result::invalid_argument, fmt::format("ncclCommRevoke: flags {}, not 0", flags));
    const auto communicator = find(comm, "ncclCommRevoke");
    communicator->revoke();
    return communicator->complete();
  });
}

// A loop of polls ends: each may run something.
Result ncclCommGetAsyncError(Comm comm, Result* error) {
  return api("ncclCommGetAsyncError", [&](emulated::Gpu& g) {
    const auto communicator = find(comm, "ncclCommGetAsyncError");
    *error = communicator->poll();
    if (g.random.once_in(2)) g.run_something();
    return Result::success;
  });
}

Result ncclGroupStart() {
  ++group().depth;
  return Result::success;
}

Result ncclGroupEnd() {
  if (group().depth == 0) return refuse(Result::invalid_usage, "ncclGroupEnd: not in a group");
  if (--group().depth > 0) return group().error;
  const Group ended = std::exchange(group(), {});
  if (ended.error != Result::success || ended.calls.empty()) return ended.error;
  return launch(ended.calls);
}

Result ncclAllReduce(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm comm,
                     cudaStream_t stream) {
  return add(comm, collective(Kind::all_reduce, in, out, count, type, op), stream);
}
Result ncclAllGather(const void* in, void* out, std::size_t count, DataType type, Comm comm, cudaStream_t stream) {
  return add(comm, collective(Kind::all_gather, in, out, count, type), stream);
}
Result ncclReduceScatter(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm comm,
                         cudaStream_t stream) {
  return add(comm, collective(Kind::reduce_scatter, in, out, count, type, op), stream);
}
Result ncclBroadcast(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                     cudaStream_t stream) {
  return add(comm, collective(Kind::broadcast, in, out, count, type, {}, root), stream);
}
Result ncclReduce(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm comm,
                  cudaStream_t stream) {
  return add(comm, collective(Kind::reduce, in, out, count, type, op, root), stream);
}
Result ncclSend(const void* in, std::size_t count, DataType type, int peer, Comm comm, cudaStream_t stream) {
  Call call = collective(Kind::send, in, nullptr, count, type);
  call.peer = peer;
  return add(comm, call, stream);
}
Result ncclRecv(void* out, std::size_t count, DataType type, int peer, Comm comm, cudaStream_t stream) {
  Call call = collective(Kind::recv, nullptr, out, count, type);
  call.peer = peer;
  return add(comm, call, stream);
}

Result ncclRedOpCreatePreMulSum(RedOp* op, void* factor, DataType type, ScalarResidence residence, Comm comm) {
  constexpr const char* kName = "ncclRedOpCreatePreMulSum";
  return api(kName, [&](emulated::Gpu&) {
    const auto communicator = find(comm, kName);
    communicator->check_ready(kName);
    const auto* bytes = static_cast<const std::byte*>(factor);
    const std::size_t size = bytes_of(type);
    const bool is_here = residence == ScalarResidence::host_immediate;
    if (size == 0 || (!is_here && !emulated::device_memory().accessible(bytes, size)))
      throw Refused(Result::invalid_argument, fmt::format("{}: no such type, or no such memory of a device", kName));
    Factor made{.type = type};
    if (is_here) made.value.assign(bytes, bytes + size);
    else made.device = bytes;
    *op = static_cast<RedOp>(communicator->add_factor(std::move(made)));
    return Result::success;
  });
}

Result ncclRedOpDestroy(RedOp op, Comm comm) {
  return api("ncclRedOpDestroy", [&](emulated::Gpu&) {
    if (!find(comm, "ncclRedOpDestroy")->destroy_factor(static_cast<std::uint32_t>(op)))
      throw Refused(Result::invalid_argument, "ncclRedOpDestroy: no operator, or one that was destroyed");
    return Result::success;
  });
}

Result ncclMemAlloc(void** memory, std::size_t bytes) {
  return of_memory("ncclMemAlloc", [&] { return cudaMalloc(memory, bytes); });
}
Result ncclMemFree(void* memory) {
  return of_memory("ncclMemFree", [&] { return cudaFree(memory); });
}

}  // extern "C"
