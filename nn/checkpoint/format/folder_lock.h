#pragma once
// One run at a time saves into a folder.
#include <string>

#include "runtime/os/descriptor.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::ckpt {

/// Holds DIR/lock for as long as it lives; the system lets go of it when the process ends, however it ends. Makes the
/// folder if there is none. On file systems without locks it holds nothing, and says so on stderr.
class FolderLock : NoCopy {
 public:
  /// `holder` is what others who want the folder read: who uses it. Throws Error naming the folder, and its holder if
  /// another process, or another FolderLock of this one, has it.
  FolderLock(const std::string& dir, const std::string& holder);
  /// Removes the file.
  ~FolderLock();

  /// Tells the folder from others of its name, on this host: where a disk is gone, or another is mounted over it, the
  /// name leads to nothing or to another folder.
  const std::string& identity() const { return identity_; }
  /// Throws Error, with what to do, unless the folder of that name still has this identity.
  void check_is_still(const std::string& identity) const;

  /// Throws Error, with what to do, unless this process sees in the folder `dir` the lock that `holder`, on another
  /// host, has there.
  static void check_sees(const std::string& dir, const std::string& holder);

 private:
  std::string dir_, path_;
  std::string identity_;  // the lock, which is open, keeps the inode from being used anew
  Descriptor file_;
};

}  // namespace sherd::ckpt
