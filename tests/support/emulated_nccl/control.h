#pragma once
// What tests set of the emulated NCCL. Programs that load it set the same by environment variables, read when it is
// first used:
//   SHERD_EMULATED_NCCL_VERSION  the release that it poses as, 21803 for 2.18.3 (default 22809)
//   SHERD_EMULATED_NCCL_FAULT    KIND:RANK:GROUP, as Fault says: hang:1:3
#include <cstdint>
#include <string>

namespace sherd::cuda::nccl::fake {

/// What goes wrong at the `group`-th group (from 1; a call alone is one) that the rank's thread issues, over all of its
/// communicators; `rank` is that in the group's communicator.
struct Fault {
  enum class Kind {
    none,
    hang,       ///< the device never gets to it
    die,        ///< the process is killed when the device does
    error,      ///< the communicator has an asynchronous ncclRemoteError, and the device never gets to it
    fail_init,  ///< the rank's next communicator is not made; `group` counts nothing
  };
  Kind kind = Kind::none;
  int rank = 0;
  std::uint64_t group = 1;
};

struct Configuration {
  int version = 22809;
  Fault fault{};
  bool refuses_orders = true;    ///< two orders over two communicators; NCCL does not
  std::uint64_t most_polls = 4;  ///< how often ncclInProgress is answered at most, where the other ranks are there
};
Configuration default_configuration();
/// Forgets all communicators and what ranks issued, too. Items that streams still hold must be gone: emulated::reset().
void reset(const Configuration& configuration = default_configuration());

}  // namespace sherd::cuda::nccl::fake
