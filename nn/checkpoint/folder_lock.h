#pragma once
// One run at a time saves into a folder.
#include <sys/types.h>

#include <string>

#include "runtime/os/descriptor.h"

namespace sherd {

/// Holds DIR/lock for as long as it lives; the system lets go of it when the process ends, however it ends. Makes the
/// folder if there is none. On file systems without locks it holds nothing, and says so on stderr.
class FolderLock {
 public:
  /// `holder` is what others who want the folder read: who uses it. Throws Error naming the folder, and its holder if
  /// another process, or another FolderLock of this one, has it.
  FolderLock(const std::string& dir, const std::string& holder);
  /// Removes the file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Throws Error, with what to do, unless the folder of that name is still the one that was locked: where a disk is
  /// gone, or another is mounted over it, the name leads to nothing or to another folder.
  void check_is_there() const;

 private:
  void note_folder();

  std::string dir_, path_;
  dev_t device_ = 0;  // of the folder; the lock, which is open, keeps its inode from being used anew
  ino_t inode_ = 0;
  Descriptor file_;
};

}  // namespace sherd
