#pragma once
// What the tape keeps of forward, outside of memory until backward reads it: in a file, or for a device in memory of
// the host. A SavedPolicy, so it holds for what is recorded in its scope, and composes with segments, of which the tape
// keeps less (segment.h).
//
//   rank's thread   save 0 | save 1 | save 2 | save 3 | ...  use 3 | use 2 | use 1 | use 0       forward, backward
//   queue                           [evict 0][evict 1]       [fetch 1][fetch 0]
//   in memory       the youngest, which backward reads first, and what is on its way out, or in ahead of its use
//
// Bytes move by storage: what several calls save of one storage moves once. Nothing here depends on timing, so memory
// is what a ghost rank predicts, and a recorded step moves the same.
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/autograd/saved_policy.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

struct OffloadSavedOptions {
  /// Folder of the file that tensors of the host go to; empty for tensors of a device.
  std::string folder{};
  /// Saved tensors in memory at a time, at most: one half are those saved last and those that are fetched ahead of
  /// their use, the other half those on their way out. A larger one is alone in its half.
  std::int64_t bytes_in_flight = std::int64_t{64} << 20;
  /// Storages of fewer bytes stay in memory: they are not worth a call.
  std::int64_t least_bytes = 4096;
};

/// Moves storages in the account of activations; parameters, gathered ones and views of either, buffers and memory of
/// somebody else (a mapped file) stay where they are. The tape may outlive it.
class OffloadSaved final : public SavedPolicy, NoCopy {
 public:
  /// How many bytes of a distributed tensor a rank has on average: ranks decide alike, whatever their shards hold.
  using BytesPerRank = std::int64_t (*)(const Tensor& tensor);

  /// Without `count` it is the bytes of this rank's storage that count. Error for a folder that is not there or takes
  /// no files, and for fewer bytes in flight than two storages of least_bytes.
  explicit OffloadSaved(OffloadSavedOptions options, BytesPerRank count = nullptr);
  ~OffloadSaved();

  /// May start to evict what was saved before. Errors: tensors of the host and no folder, or of a device and a folder;
  /// a disk that is full. What fails to be written or read is the error of whoever reads the saved tensor.
  std::unique_ptr<SavedPolicy::Packed> pack(const Tensor& tensor) override;

  /// Bytes that all homes so far have taken of the file, or of the host's memory.
  std::int64_t home_bytes() const;

 private:
  class Saves;
  class Bytes;
  class Packed;
  const std::shared_ptr<Saves> saves_;  // packed tensors share it
};

}  // namespace sherd
