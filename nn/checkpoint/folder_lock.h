#pragma once
// One run at a time saves into a folder.
#include <string>

#include "runtime/os/descriptor.h"

namespace sherd {

/// Holds DIR/lock for as long as it lives; the system lets go of it when the process ends, however it ends. Makes the
/// folder if there is none. Not on file systems without locks, where it holds nothing.
class FolderLock {
 public:
  /// `holder` is what others who want the folder read: who uses it. Throws Error naming the folder, and its holder if
  /// another process, or another FolderLock of this one, has it.
  FolderLock(const std::string& dir, const std::string& holder);
  /// Removes the file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  Descriptor file_;
};

}  // namespace sherd
