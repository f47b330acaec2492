#pragma once
// NCCL's functions, found at run time: the oldest release that works is 2.18.3, the first with ncclCommSplit, and what
// newer ones have more is optional.
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/device/library.h"
#include "runtime/cuda/nccl/nccl_types.h"

namespace sherd::cuda::nccl {

inline constexpr int kOldestVersion = 21803;

struct NcclApi {
  /// Binds what `opened` has; unusable if it is older than kOldestVersion or lacks a required function.
  explicit NcclApi(Library opened);
  Library library;
  int version = 0;      ///< 22809; also of one that is refused for its age; 0 if none was found
  std::string missing;  ///< optional functions that are null below, and what a host without them lacks

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  const char* (*last_error)(Comm) = nullptr;
  Result (*init_rank)(Comm*, int num_ranks, UniqueId, int rank, Config*) = nullptr;
  Result (*split)(Comm, int color, int key, Comm*, Config*) = nullptr;
  Result (*finalize)(Comm) = nullptr;
  Result (*destroy)(Comm) = nullptr;
  Result (*abort)(Comm) = nullptr;
  Result (*async_error)(Comm, Result*) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void*, void*, std::size_t, DataType, RedOp, Comm, cudaStream_t) = nullptr;
  Result (*all_gather)(const void*, void*, std::size_t, DataType, Comm, cudaStream_t) = nullptr;
  Result (*reduce_scatter)(const void*, void*, std::size_t, DataType, RedOp, Comm, cudaStream_t) = nullptr;
  Result (*broadcast)(const void*, void*, std::size_t, DataType, int root, Comm, cudaStream_t) = nullptr;
  Result (*reduce)(const void*, void*, std::size_t, DataType, RedOp, int root, Comm, cudaStream_t) = nullptr;
  Result (*send)(const void*, std::size_t, DataType, int peer, Comm, cudaStream_t) = nullptr;
  Result (*recv)(void*, std::size_t, DataType, int peer, Comm, cudaStream_t) = nullptr;
  Result (*create_pre_mul_sum)(RedOp*, void* factor, DataType, ScalarResidence, Comm) = nullptr;
  Result (*destroy_op)(RedOp, Comm) = nullptr;

  // Optional.
  Result (*revoke)(Comm, int flags) = nullptr;
  Result (*allocate)(void**, std::size_t bytes) = nullptr;
  Result (*free)(void*) = nullptr;
  Result (*init_rank_scalable)(Comm*, int num_ranks, int rank, int num_ids, UniqueId*, Config*) = nullptr;

  /// A line of `sherd info`: "2.23.4, /usr/lib/libnccl.so.2; without ncclCommRevoke (2.28.7): ...", or why there is
  /// none.
  std::string describe() const;
  /// "unhandled cuda error: Cuda failure '...'", in NCCL's words, also of results that are not in Result; `comm` may be
  /// null. Of the calling thread's last error.
  std::string text_of(Result result, Comm comm) const;
  /// text_of(), and what a user can do about it: "...; `sherd info` says whether ...".
  std::string explain(Result result, Comm comm) const;
};

/// An optional function: the first release that has it, and what a host without it lacks; "": another one says it.
struct OptionalBinding {
  Binding binding;
  int since;
  const char* lacks;
};
/// The table of functions, as pointers into `api`.
std::vector<Binding> required_functions(NcclApi& api);
std::vector<OptionalBinding> optional_functions(NcclApi& api);

/// NCCL of this process, opened at the first call; any thread. The file that SHERD_NCCL_LIB names, else the one beside
/// this backend, the loader's, or that of Python's wheel nvidia-nccl.
const NcclApi& nccl_api();

/// Throws Error "NCCL 2.28.9: what: NCCL's explanation; remedy" unless `result` is success.
void check_nccl(const NcclApi& api, Result result, std::string_view what, Comm comm = nullptr);

}  // namespace sherd::cuda::nccl
