#pragma once
// Bytes that lie outside of a rank's memory, in a file without a name: it is gone with the process, however that ends,
// and nobody else can truncate it. Work of queues reads and writes it by position; it is also mapped, so that whoever
// wants to look at some of it, as a checkpoint does, finds it at its address.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/memory/storage.h"
#include "runtime/os/descriptor.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// Made, grown and destroyed by its rank's thread; read and written by any.
class OffloadFile : public std::enable_shared_from_this<OffloadFile>, NoCopy {
 public:
  /// A new one in `folder`. Error naming the folder if it is not there or takes no files. On a ghost rank there is no
  /// file, and addresses hold nothing.
  static std::shared_ptr<OffloadFile> in(const std::string& folder);
  ~OffloadFile();

  /// `bytes` zeros more, as a storage of the host that is in no account; the blocks of the disk are taken now. Aligned
  /// to 64; such that follow each other lie without a gap if their sizes are multiples of it. Error naming the folder
  /// and what is missing if the disk is full.
  Ref<Storage> allocate(std::int64_t bytes);
  /// The file's, with what was given back: homes of the same size use that again, and it takes no blocks until then.
  std::int64_t bytes() const { return used_; }
  const std::string& folder() const { return folder_; }

  /// The file of this rank whose bytes are at `address`; null: they are in memory.
  static OffloadFile* of(const std::byte* address);
  /// From or to the file, by position: no page of it becomes resident memory of the process. `home` is an address of
  /// this file. Blocks; Error naming the folder if the disk fails.
  void read(const std::byte* home, std::span<std::byte> to) const;
  void write(std::byte* home, std::span<const std::byte> from) const;
  /// Pages of the range that somebody has looked at, and those around, are memory of this process no more; what was
  /// written there stays. No-op on a ghost rank.
  void leave_memory(const std::byte* home, std::int64_t bytes) const;
  /// From now on reads and writes together take as long as on a disk of that many bytes per second; 0: as they are.
  /// For measurement.
  void set_rate(double bytes_per_second) { rate_ = bytes_per_second; }

 private:
  OffloadFile(std::string folder, bool is_ghost);
  void grow(std::int64_t bytes);
  template <class Move>
  void move(const char* verb, const std::byte* home, std::int64_t bytes, const Move& move_some) const;

  const std::string folder_;
  Descriptor file_;              // none on a ghost rank
  const std::int64_t reserved_;  // addresses
  std::byte* base_ = nullptr;
  std::atomic<std::int64_t> size_{0};  // grown by the rank's thread; queues ask what is mapped
  std::int64_t used_ = 0;
  double rate_ = 0;
};

}  // namespace sherd
