#pragma once
// What a rank queued last on its device. A kernel fails long after its launch, and from then on every call fails,
// whatever it is: the error says what was under way, instead of blaming the call that noticed it.
//
//   launch(...)                 add_kernel()   a ring of the last 64
//   a wait that is over         ended(n)       what had ended is not listed
//   a call fails for good       lose()         one error, thrown now and by whatever is asked of the device later
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {
struct Op;
}

namespace sherd::cuda {

/// Whether a status says that the device is lost to this process: every later call returns it too.
bool is_lasting(cudaError_t status);

/// One per context, used on the rank's thread and ended there.
class LaunchLog : NoCopy {
 public:
  explicit LaunchLog(int device) : device_(device) {}
  ~LaunchLog();
  void set_stream(cudaStream_t stream) { stream_ = stream; }

  /// The log of the context that this thread used last; null if that has ended, or there was none.
  static LaunchLog* current();
  /// Makes it the thread's.
  void enter();

  /// Kernels that are queued from now on are those of `row`; null: of none.
  void in_row(const Op* row) { row_ = row; }
  const Op* row() const { return row_; }
  void add_kernel(const void* kernel, dim3 blocks, unsigned threads);
  /// A library's work, or a copy; `what` is a literal.
  void add(const char* what, const Op* row = nullptr) { keep({what, nullptr, row, {}, 0}); }
  /// While a graph is recorded nothing is queued.
  void set_recording(bool recording) { recording_ = recording; }

  /// As kernel_symbol(), also of a lost device if it was launched there before.
  const char* symbol_of(const void* kernel);

  std::uint64_t queued() const { return queued_; }
  /// The first `queued` of all have run.
  void ended(std::uint64_t queued) { ended_ = std::max(ended_, queued); }

  void throw_if_lost() const {
    if (lost_) [[unlikely]]
      throw Error(*lost_);
  }
  /// `status` is lasting. Throws the error that says so, or the first one there was. `noticed` as of check().
  [[noreturn]] void lose(cudaError_t status, const char* noticed);
  /// After a library failed, whose status may hide it: throws if the device is lost.
  void check_device(const char* noticed);

 private:
  struct Queued {
    const char* what = nullptr;    // a literal; null: a kernel
    const char* symbol = nullptr;  // the kernel's
    const Op* row = nullptr;
    dim3 blocks;
    unsigned threads = 0;
  };
  struct Known {
    const void* kernel = nullptr;
    const char* symbol = nullptr;
  };
  static constexpr std::size_t kKept = 64, kKnown = 256;
  static std::string text_of(const Queued& queued);
  std::string last_queued() const;
  void keep(const Queued& queued) {
    if (!recording_) ring_[queued_++ % kKept] = queued;
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  const Op* row_ = nullptr;
  bool recording_ = false;
  std::uint64_t queued_ = 0, ended_ = 0;
  std::array<Queued, kKept> ring_{};
  std::array<Known, kKnown> known_{};  // symbols, asked for while the device still answers
  std::optional<Error> lost_;
};

/// After a library failed on this thread: throws if that is because the device is lost.
void check_device(const char* noticed);

}  // namespace sherd::cuda
