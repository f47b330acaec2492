#include "nn/checkpoint/format/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {
constexpr std::size_t kMaxWriteBytes = std::size_t{1} << 30;  // Linux writes at most 2 GiB - 4 KiB at once.
}  // namespace

AtomicFile::AtomicFile(std::string path, std::int64_t expected_bytes, BlockHasher* hasher)
    : path_(std::move(path)), partial_(path_ + ".partial"), expected_bytes_(expected_bytes), hasher_(hasher) {
  ::unlink(partial_.c_str());  // a leftover may be a link, behind which there is a file of another
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  check(descriptor_ >= 0, "cannot create \"{}\": {}", partial_, std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (hasher_) hasher_->add(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno("write", errno);
    // A short write is no error yet: the next one says why (disk full, quota, size limit).
    written_bytes_ += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail_with_errno("sync", errno);
  // close() may report a delayed write error (NFS, quota); the descriptor is gone either way.
  if (::close(std::exchange(descriptor_, -1)) != 0 || ::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    fail_with_errno("finish", error);
  }
  sync_folder(std::filesystem::path(path_).parent_path().string());
}

void AtomicFile::fail_with_errno(const char* what, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  fail("cannot {} \"{}\": {} after {} of {} bytes; nothing is kept of it{}", what, path_, std::strerror(error),
       written_bytes_, expected_bytes_, is_full ? "; free space there and try again" : "");
}

void sync_folder(const std::string& folder) {
  const std::string path = folder.empty() ? "." : folder;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(descriptor >= 0, "cannot open the folder \"{}\": {}", path, std::strerror(errno));
  const int result = ::fsync(descriptor), error = errno;
  ::close(descriptor);
  // Some file systems cannot sync a folder and say EINVAL; their renames are as durable as they get.
  check(result == 0 || error == EINVAL, "cannot sync the folder \"{}\": {}", path, std::strerror(error));
}

}  // namespace sherd::ckpt
