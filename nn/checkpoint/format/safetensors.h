#pragma once
// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
//
//   | u64 n | {"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}  (n bytes) | data ... |
//
// Specification: github.com/huggingface/safetensors, README "Format".
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/checkpoint/format/atomic_file.h"
#include "nn/checkpoint/format/input_file.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd::ckpt {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

/// One tensor of a file.
struct TensorEntry : TensorInfo {
  std::int64_t offset = 0;  ///< of its first byte in the file
  std::int64_t bytes = 0;
};

/// One tensor as bytes: row-major, little-endian. Borrows its bytes.
struct TensorBytes : TensorInfo {
  std::span<const std::byte> bytes;
};

/// numel(shape) x byte_size(dtype). Throws Error if a dim is negative or the product does not fit 63 bits.
std::int64_t byte_count(DType dtype, const Shape& shape);

/// A file opened for reading. Tensors are read by position, on demand. Copies share the open file.
class SafetensorsFile {
 public:
  /// Reads and checks the whole header: lengths, names, dtype x shape = bytes, ranges without holes or overlaps. Takes
  /// memory for the entries only. Throws Error naming the file and the tensor, or that it is of another format.
  static SafetensorsFile open(const std::string& path);

  /// In file order.
  const std::deque<TensorEntry>& tensors() const { return contents_->tensors; }
  const TensorEntry* find(std::string_view name) const;
  /// Like find(), but throws Error naming the file when the tensor is missing.
  const TensorEntry& at(std::string_view name) const;
  /// Copies the tensor's bytes from byte `begin` on, as many as `out` holds. Blocks on the disk. Throws Error naming
  /// file and tensor if the file has been truncated since open(), or cannot be read.
  void read(const TensorEntry& tensor, std::int64_t begin, std::span<std::byte> out) const;
  const std::map<std::string, std::string>& metadata() const { return contents_->metadata; }
  const std::string& path() const { return contents_->file.path(); }

 private:
  struct Contents {
    explicit Contents(const std::string& path) : file(path) {}
    void read_header(std::int64_t data);
    void index_names();

    InputFile file;
    std::deque<TensorEntry> tensors;     // grows without a copy of what it holds
    std::vector<std::uint32_t> by_name;  // positions in it
    std::map<std::string, std::string> metadata;
  };
  explicit SafetensorsFile(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

/// A file written in parts, for contents that need not be in memory at once. It appears by rename once it is complete
/// and on disk; on failure (disk full, two tensors of one name) Error names the file, and an older file at `path`
/// stays.
class SafetensorsWriter {
 public:
  /// The header is written now; tensors are stored in the order given. `hasher`, if there is one, is told of all bytes
  /// of the file.
  SafetensorsWriter(const std::string& path, std::span<const TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {}, BlockHasher* hasher = nullptr);
  /// The next bytes, of any number of tensors.
  void write(std::span<const std::byte> bytes);
  /// In the file, of the next byte that is written.
  std::int64_t position() const { return file_->position(); }
  /// Blocks on the disk. Error unless all bytes of all tensors were written.
  void commit();

 private:
  std::string path_;
  std::int64_t left_bytes_ = 0;
  std::optional<AtomicFile> file_;
};

/// Writes `tensors` to `path`, wide dtypes first, then by name, so every tensor is aligned and equal contents give
/// equal files. All or nothing, as SafetensorsWriter; bytes that do not fit their shape are an Error.
void write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace sherd::ckpt
