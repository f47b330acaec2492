#pragma once
// The order in which a rank's thread issues groups over all of its communicators. NCCL wants it to be the same on all
// ranks, or devices may wait for each other for ever, rarely: here each pair of ranks is compared, and a difference is
// an error at once.
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>

namespace sherd::cuda::nccl::fake {

/// An item of a communicator that this rank has issued, and `peer` has or will.
struct Expected {
  std::uint64_t thread = 0, peer = 0;                           ///< these two's orders are compared
  std::uint64_t place = 0;                                      ///< in this thread's order
  std::string what{};                                           ///< "ncclAllGather of 4 float32 of "gather""
  std::function<std::optional<std::uint64_t>()> place_there{};  ///< in the peer's; nothing before it has issued it
  std::function<void(const std::string& why)> differs{};
};

/// One for all ranks that are threads of this process; guarded by the lock of the emulated GPU.
class HostOrder {
 public:
  /// The next place of a thread's order, from 1.
  std::uint64_t next(std::uint64_t thread) { return ++places_[thread]; }
  void expect(Expected item) { expected_.push_back(std::move(item)); }
  /// Compares what peers have issued by now.
  void compare();

 private:
  struct Known {
    std::uint64_t there;
    std::string what;
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  static constexpr std::size_t kRemembered = 1024;
  std::map<std::uint64_t, std::uint64_t> places_;         // by thread
  std::map<Pair, std::map<std::uint64_t, Known>> known_;  // by (thread, peer): place here -> place there
  std::list<Expected> expected_;
};

/// A number for this thread, unlike those of other threads and processes.
std::uint64_t this_thread();

}  // namespace sherd::cuda::nccl::fake
