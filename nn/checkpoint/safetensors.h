#pragma once
// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
//
//   | u64 n | {"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}  (n bytes) | data ... |
//
// Specification: github.com/huggingface/safetensors, README "Format".
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace sherd {

/// One tensor as bytes: row-major, little-endian. Borrows its bytes.
struct TensorBytes {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// numel(shape) x byte_size(dtype). Throws Error if a dim is negative or the product does not fit 63 bits.
std::int64_t byte_count(DType dtype, const Shape& shape);

/// A file opened for reading; mapped, so tensors cost memory only as they are read. Copies share the mapping.
class SafetensorsFile {
 public:
  /// Reads and checks the whole header: lengths, names, dtype x shape = bytes, ranges without holes or overlaps.
  /// Throws Error naming the file and the tensor. The file must not be cut short while it is open: the kernel
  /// reports that as SIGBUS. Files of checkpoints never are, they are replaced by rename.
  static SafetensorsFile open(const std::string& path);

  /// In file order. Bytes live as long as this object or a copy of it; aligned to their dtype if the writer was ours.
  const std::vector<TensorBytes>& tensors() const { return tensors_; }
  const TensorBytes* find(std::string_view name) const;
  /// Like find(), but throws Error naming the file when the tensor is missing.
  const TensorBytes& at(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  SafetensorsFile() = default;

  std::string path_;
  std::shared_ptr<const std::byte> mapping_;
  std::vector<TensorBytes> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Writes `tensors` to `path`, wide dtypes first, then by name, so every tensor is aligned and equal contents give
/// equal files. The file appears by rename once it is whole and on disk; on failure (disk full, two tensors of one
/// name, bytes that do not fit the shape) it throws Error naming the file, and an older file at `path` stays. Blocks.
void write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace sherd
