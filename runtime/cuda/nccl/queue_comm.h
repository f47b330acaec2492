#pragma once
// One rank's end of the communicator of a group and a queue. NCCL never blocks in here: what it has in progress is
// polled, with a deadline, so a watchdog's thread can end it at any time.
//
//   rank's thread   launch(list) -> one NCCL group, polled until it is on the stream -> then a mark may be recorded
//   watchdog        error(), stop()
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "runtime/cuda/nccl/nccl_api.h"
#include "runtime/tensor/error.h"

namespace sherd::cuda::nccl {

/// One call of a list. `count` elements: of each rank's part for all_gather and reduce_scatter, else of the whole.
struct ListCall {
  enum class Op : std::uint8_t { all_reduce, all_gather, reduce_scatter, broadcast, reduce, send, recv };
  Op op{};
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  DataType type{};
  RedOp reduction = RedOp::sum;
  int peer = 0;  ///< root of broadcast and reduce; the other rank of send and recv
};
/// "ncclAllGather of 3 parts, the first of 40 elements".
std::string text_of(std::span<const ListCall> calls);

struct QueueCommOptions {
  std::string name;  ///< "dp gather": in messages, and in NCCL's logs
  int max_ctas = 0;  ///< blocks of the device that collectives may take; 0: as NCCL likes
  /// Limits on waits for other ranks: until a list is on its stream, and until the communicator is made, which the
  /// first limits, too.
  std::chrono::nanoseconds deadline = std::chrono::seconds(300), init_deadline = std::chrono::seconds(60);
};

/// Another rank has not come in time: its own error says more.
class NotCome : public CommError {
 public:
  using CommError::CommError;
};

class QueueComm {
 public:
  /// Joins the `size` ranks that are given `id`, on the thread's device. Collective, in one order on all ranks. Throws
  /// CommError naming the communicator where NCCL fails, NotCome where a rank does not come in time.
  QueueComm(const NcclApi& api, const UniqueId& id, int size, int rank, QueueCommOptions options);
  /// Aborts, unless close() was called.
  ~QueueComm();
  QueueComm(const QueueComm&) = delete;
  QueueComm& operator=(const QueueComm&) = delete;

  /// Puts the list on `stream` as one group. When it returns, it is there: what is recorded next comes after it. Throws
  /// CommError if NCCL refuses it, or the communicator was stopped.
  void launch(std::span<const ListCall> calls, cudaStream_t stream);
  /// What NCCL has found wrong since; "" if nothing. From any thread.
  std::string error();
  /// Ends what is under way, and every later launch() throws `reason`: by ncclCommRevoke where there is one, else by
  /// ncclCommAbort. From any thread.
  void stop(std::string_view reason);
  /// Begins to close: nothing can be launched any more. Does not wait.
  void finalize();
  /// Waits for what is on streams, of all ranks. Collective; throws as launch() does.
  void close();
  void set_deadline(std::chrono::nanoseconds deadline) { deadline_ = deadline; }

  const std::string& name() const { return options_.name; }
  std::uint64_t launched() const { return launched_; }

 private:
  void settle(Result result, const std::string& what, std::chrono::nanoseconds deadline);
  void check(Result result, const std::string& what);
  std::string describe(const std::string& what, const std::string& why) const;
  Result start(const ListCall& call, cudaStream_t stream) const;

  const NcclApi& api_;
  const QueueCommOptions options_;
  const int size_, rank_;
  std::mutex mutex_;  // of the communicator: NCCL wants one thread at a time
  Comm comm_ = nullptr;
  std::string stopped_;  // why; empty: it was not
  std::uint64_t launched_ = 0;
  std::atomic<std::chrono::nanoseconds> deadline_;
  bool is_closing_ = false;
};

}  // namespace sherd::cuda::nccl
