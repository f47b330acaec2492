#pragma once
// How the ranks of one host find rank 0's store when the launcher (torchrun, mpirun, srun) does not tell: rank 0
// leaves port and secret in a file that only the user can read. The file names its writer by process id and start
// time, so that a file of a job that died without removing it is never taken for a live one.
#include <chrono>
#include <string>

#include "runtime/comm/group/wait_notice.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

struct StoreAddress {
  int port = 0;
  /// Hexadecimal digits.
  std::string secret;
};

/// The folder for such files, made with mode 0700 if it does not exist: `runtime_folder`/sherd where that is a
/// folder of this user, else /tmp/sherd-<uid>. Error if another user owns it or may look into it.
std::string rendezvous_folder(const std::string& runtime_folder);

/// Keeps the file of `job` in `folder` for as long as it lives. The file is complete when it appears. Files of dead
/// processes are removed on the way. Error: a live process has published for the same job.
class PublishedAddress : NoCopy {
 public:
  PublishedAddress(std::string folder, const std::string& job, const StoreAddress& address);
  ~PublishedAddress();

 private:
  std::string folder_, name_, content_;
};

/// Blocks until a live process has published for `job`; CommError after `deadline`.
StoreAddress await_address(const std::string& folder, const std::string& job, std::chrono::milliseconds deadline,
                           const WaitNotice& notice = {});

}  // namespace sherd
