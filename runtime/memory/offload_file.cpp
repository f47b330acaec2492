// The file's addresses are reserved once, without memory; as the file grows it is mapped over them, so that an address
// says which byte of the file it is. Pages that somebody has looked at count as memory of the process until the next
// write of them by position, or until the system wants them: they are the page cache's.
#include "runtime/memory/offload_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

constexpr std::int64_t kMostReserved = std::int64_t{1} << 42;  // addresses; x86-64 has 2^47
constexpr std::int64_t kFilePage = 4096, kFaultAround = 64 << 10, kFileGrowth = std::int64_t{1} << 20,
                       kHomeAlignment = 64;

// Files of the process, looked up by address: by queue items, which run on any thread, and by ranks as threads.
struct OpenFiles {
  std::mutex mutex;
  std::vector<OffloadFile*> list;
  std::multimap<std::pair<const OffloadFile*, std::int64_t>, std::byte*> free;  // by file and size
};
OpenFiles& open_files() {
  static OpenFiles& files = *new OpenFiles;
  return files;
}

// O_TMPFILE where the file system has it, else a file that loses its name at once.
Descriptor unnamed_file(const std::string& folder) {
  std::error_code error;
  check(std::filesystem::is_directory(folder, error),
        "offload: \"{}\" is not a folder: name one that is there, on a disk with room for what is offloaded", folder);
  if (const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); fd >= 0) return Descriptor(fd);
  std::string path = folder + "/sherd-offload-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  check(fd >= 0, "offload: cannot make a file in the folder \"{}\": {}; name one that can be written", folder,
        std::strerror(errno));
  ::unlink(path.c_str());
  return Descriptor(fd);
}

// 0, or what is wrong.
int take_blocks(int file, std::int64_t at, std::int64_t bytes) {
  int error = EINTR;  // by a signal that is only noted
  while (error == EINTR) {
    error = ::fallocate(file, 0, at, bytes) == 0 ? 0 : errno;
    if (error == EOPNOTSUPP) error = ::posix_fallocate(file, at, bytes);
  }
  return error;
}

[[noreturn]] void refuse(const OffloadFile& file, std::int64_t bytes, int error) {
  fail(
      "offload: \"{}\" has no room for {} beside {} that are offloaded: {}; name a folder on a larger disk, or offload "
      "less",
      file.folder(), format_bytes(bytes), format_bytes(file.bytes()), std::strerror(error));
}

// A place that was given back, or null.
std::byte* take_free(const OffloadFile* file, std::int64_t bytes) {
  OpenFiles& files = open_files();
  const std::lock_guard lock(files.mutex);
  const auto found = files.free.find({file, bytes});
  if (found == files.free.end()) return nullptr;
  std::byte* const place = found->second;
  files.free.erase(found);
  return place;
}

// As many addresses as the disk has bytes: limits on address space are shared with all else.
std::int64_t addresses_for(const std::string& folder) {
  std::error_code error;
  const std::filesystem::space_info disk = std::filesystem::space(folder, error);
  if (error || disk.capacity > static_cast<std::uintmax_t>(kMostReserved)) return kMostReserved;
  return round_up(static_cast<std::int64_t>(disk.capacity), kFileGrowth);
}

}  // namespace

std::shared_ptr<OffloadFile> OffloadFile::in(const std::string& folder) {
  return std::shared_ptr<OffloadFile>(new OffloadFile(folder, RankMemory::current().is_ghost()));
}

OffloadFile::OffloadFile(std::string folder, bool is_ghost)
    : folder_(std::move(folder)), reserved_(is_ghost ? kMostReserved : addresses_for(folder_)) {
  if (!is_ghost) file_ = unnamed_file(folder_);
  void* const base = ::mmap(nullptr, static_cast<std::size_t>(reserved_), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(base != MAP_FAILED,
        "offload: this process has no {} of addresses left: {}; raise its limit (ulimit -v), or offload on fewer ranks "
        "of one process",
        format_bytes(reserved_), std::strerror(errno));
  base_ = static_cast<std::byte*>(base);
  OpenFiles& files = open_files();
  const std::lock_guard lock(files.mutex);
  files.list.push_back(this);
}

OffloadFile::~OffloadFile() {
  {
    OpenFiles& files = open_files();
    const std::lock_guard lock(files.mutex);
    std::erase(files.list, this);
    std::erase_if(files.free, [this](const auto& place) { return place.first.first == this; });
  }
  ::munmap(base_, static_cast<std::size_t>(reserved_));
}

OffloadFile* OffloadFile::of(const std::byte* address) {
  OpenFiles& files = open_files();
  const std::lock_guard lock(files.mutex);
  const auto found = std::ranges::find_if(files.list, [&](const OffloadFile* file) {
    return address >= file->base_ && address < file->base_ + file->reserved_;
  });
  return found == files.list.end() ? nullptr : *found;
}

// What is given back is a hole of the file, which takes no blocks, until a home of the same size wants it.
Ref<Storage> OffloadFile::allocate(std::int64_t bytes) {
  const auto gives_back = [self = shared_from_this(), bytes](std::byte* home) {
    return [self, bytes, home] {
      if (self->file_ &&
          ::fallocate(self->file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, home - self->base_, bytes) != 0)
        return;  // a file system without holes
      OpenFiles& files = open_files();
      const std::lock_guard lock(files.mutex);
      files.free.emplace(std::pair(self.get(), bytes), home);
    };
  };
  if (std::byte* const home = take_free(this, bytes)) {
    if (const int error = file_ ? take_blocks(file_.get(), home - base_, bytes) : 0; error != 0) {
      gives_back(home)();
      refuse(*this, bytes, error);
    }
    return Storage::borrow(home, bytes, gives_back(home));
  }
  const std::int64_t at = round_up(used_, kHomeAlignment);
  if (at + bytes > size_) grow(at + bytes - size_);
  used_ = at + bytes;
  return Storage::borrow(base_ + at, bytes, bytes > 0 ? gives_back(base_ + at) : std::function<void()>());
}

// Blocks are taken here, where it can be said what is missing: a full disk met through the mapping kills the process.
void OffloadFile::grow(std::int64_t bytes) {
  const std::int64_t more = round_up(bytes, kFileGrowth);
  if (size_ + more > reserved_) refuse(*this, bytes, EFBIG);
  if (file_) {
    if (const int error = take_blocks(file_.get(), size_, more); error != 0) refuse(*this, bytes, error);
    void* const at = base_ + size_;
    if (::mmap(at, static_cast<std::size_t>(more), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(),
               size_) == MAP_FAILED)
      refuse(*this, bytes, errno);
  }
  size_ += more;
}

template <class Move>
void OffloadFile::move(const char* verb, const std::byte* home, std::int64_t bytes, const Move& move_some) const {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t count = move_some(done, static_cast<off_t>(home - base_ + done));
    if (count < 0 && errno == EINTR) continue;
    check(count > 0, "offload: cannot {} {} at byte {} of the file in \"{}\": {}", verb, format_bytes(bytes - done),
          home - base_ + done, folder_, count < 0 ? std::strerror(errno) : "it ends there");
    done += count;
  }
  if (rate_ > 0)
    std::this_thread::sleep_until(
        start + std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / rate_)));
}

void OffloadFile::read(const std::byte* home, std::span<std::byte> to) const {
  move("read", home, static_cast<std::int64_t>(to.size()), [&](std::int64_t done, off_t at) {
    const auto from = static_cast<std::size_t>(done);
    return ::pread(file_.get(), to.data() + from, to.size() - from, at);
  });
}

void OffloadFile::write(std::byte* home, std::span<const std::byte> from) const {
  move("write", home, static_cast<std::int64_t>(from.size()), [&](std::int64_t done, off_t at) {
    const auto to = static_cast<std::size_t>(done);
    return ::pwrite(file_.get(), from.data() + to, from.size() - to, at);
  });
  leave_memory(home, static_cast<std::int64_t>(from.size()));
}

// A look at one page maps those around it that the page cache has, too.
void OffloadFile::leave_memory(const std::byte* home, std::int64_t bytes) const {
  const std::int64_t at = home - base_;
  const std::int64_t first = std::max<std::int64_t>(at / kFilePage * kFilePage - kFaultAround, 0);
  const std::int64_t last = std::min(round_up(at + bytes, kFilePage) + kFaultAround, size_.load());
  if (file_ && first < last) ::madvise(base_ + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
}

}  // namespace sherd
