#pragma once
// A text file, or all files below a folder, seen as one long run of bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/tensor/error.h"

namespace sherd {

/// The text is not one for what is asked: it has characters that the vocabulary lacks, is no UTF-8, or is too short.
class WrongText : public Error {
 public:
  using Error::Error;
};

/// What stands for the content of files when ranks and runs compare it.
struct ContentHash {
  std::uint64_t value = 0;
  std::int64_t hashed_bytes = 0, all_bytes = 0;
  bool is_sampled() const { return hashed_bytes < all_bytes; }
  /// "0123456789abcdef", or "0123456789abcdef of 67108864 bytes": for manifests.
  std::string to_text() const;
};

/// Read by pread into the caller's buffer: if a file was truncated meanwhile, the read is short, which is an Error,
/// where a mapping would give SIGBUS. The page cache serves both alike. No file stays open, so the number and the size
/// of files do not matter. Safe to read from several threads.
class TextFiles {
 public:
  struct File {
    std::string path;        ///< to open it
    std::string name;        ///< path below the folder
    std::int64_t begin = 0;  ///< where it starts in the run of bytes
    std::int64_t size = 0;
  };

  /// `path` is a file or a folder. Of a folder: regular files at any depth, symbolic links not followed, sorted by
  /// path below it as bytes, empty ones left out. Throws Error if there is no such path, it holds no files, all of
  /// them are empty, or a folder cannot be read.
  static TextFiles open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<File>& files() const { return files_; }
  std::int64_t bytes() const { return files_.back().begin + files_.back().size; }
  /// The file that holds byte `offset`.
  const File& file_at(std::int64_t offset) const;

  /// Fills `out` with the bytes from `offset` on; the range must exist. Throws Error naming a file that is gone or
  /// shorter than it was.
  void read(std::int64_t offset, std::span<char> out) const;

  /// Changes when a file is added, removed, renamed or resized: tells a resume that the data is not the same.
  std::uint64_t fingerprint() const;
  /// XXH64 of the bytes: of all of them up to `whole_bytes`, else of kSampledBlocks blocks of kBlockBytes, evenly
  /// spread from the first byte to the last. Reads them. Throws Error as read() does.
  ContentHash content_hash(std::int64_t whole_bytes = std::int64_t{1} << 30) const;
  static constexpr std::int64_t kSampledBlocks = 1024, kBlockBytes = 1 << 16;
  /// What the system knows of the files on this host: device, inode, size and times of each. Processes of one host that
  /// see the same need not all read the files to know that they are equal.
  std::uint64_t identity() const;

 private:
  std::string path_;
  std::vector<File> files_;
};

}  // namespace sherd
