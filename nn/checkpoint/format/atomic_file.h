#pragma once
// A file that appears complete or not at all, whatever happens in between: full disk, exception, kill -9.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "nn/checkpoint/format/block_sums.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::ckpt {

/// Bytes go to `path`.partial; commit() makes them durable and renames. Without commit() the partial file is
/// removed and an older file at `path` stays as it is. Errors name the file, the reason and the bytes written.
class AtomicFile : NoCopy {
 public:
  /// `expected_bytes` is what the caller means to write in all; error messages compare with it. `hasher`, if there is
  /// one, is told of all bytes.
  AtomicFile(std::string path, std::int64_t expected_bytes, BlockHasher* hasher = nullptr);
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  /// Bytes written so far: where the next one goes.
  std::int64_t position() const { return written_bytes_; }
  /// Syncs the file, renames it to `path` and syncs the folder. Blocks on the disk.
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* what, int error);

  std::string path_, partial_;
  std::int64_t expected_bytes_, written_bytes_ = 0;
  BlockHasher* hasher_;
  int descriptor_ = -1;
};

/// Makes the names in `folder` durable. Throws Error naming it.
void sync_folder(const std::string& folder);

}  // namespace sherd::ckpt
