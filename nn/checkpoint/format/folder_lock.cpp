#include "nn/checkpoint/format/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "nn/checkpoint/format/folders.h"
#include "runtime/comm/job/world.h"
#include "runtime/os/host_name.h"
#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {

namespace fs = std::filesystem;

std::string text_of(int file) {
  std::string text(512, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text.empty() ? "another process" : text;
}

/// The file that is open is still the one of that name: its last holder may have removed it.
bool is_at(int file, const std::string& path) {
  struct stat open{}, named{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

/// Empty if there is none, with the reason in `error`.
std::string identity_of(const std::string& folder, int& error) {
  struct stat found{};
  error = ::stat(folder.c_str(), &found) == 0 ? 0 : errno;
  return error == 0 ? fmt::format("{}:{}", found.st_dev, found.st_ino) : "";
}

std::string advice(int error) {
  const std::string other = "save to another folder";
  if (error == EACCES || error == EPERM || error == EROFS) return "let this user write there, or " + other;
  if (error == ENOSPC || error == EDQUOT) return "free space there, or " + other;
  return "mend that, or " + other;
}

}  // namespace

FolderLock::FolderLock(const std::string& dir, const std::string& holder)
    : dir_(dir), path_((fs::path(dir) / "lock").string()) {
  make_folders(dir);
  int error = 0;  // of a file system without locks
  do {
    file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    error = errno;
    check(file_.is_open(), "cannot write to the folder \"{}\" (its lock): {}; {}", dir, std::strerror(error),
          advice(error));
    error = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (error == EWOULDBLOCK)
      fail("the folder \"{}\" is in use by {}; wait for its end, or save to another folder", dir, text_of(file_.get()));
  } while (!is_at(file_.get(), path_));
  if (error != 0)
    say_on_stderr(
        fmt::format("the folder \"{}\" cannot be locked ({}): a second job that saves there would not be "
                    "noticed; give each a folder of its own",
                    dir, std::strerror(error)));
  identity_ = identity_of(dir, error);
  check(error == 0, "cannot look at the folder \"{}\": {}", dir, std::strerror(error));
  // Only for messages: a full disk that keeps it from being written is no reason to stop.
  if (::ftruncate(file_.get(), 0) != 0 || ::pwrite(file_.get(), holder.data(), holder.size(), 0) < 0) return;
}

void FolderLock::check_is_still(const std::string& identity) const {
  int error = 0;
  if (identity_of(dir_, error) == identity) return;
  fail(
      "the folder \"{}\" is not the one that this run has claimed ({}): its disk may be gone, or another one be "
      "mounted there. Nothing is written to it, and the saves before are where that folder is; mount it, then go on by "
      "--resume {}",
      dir_, error == 0 ? "another folder has its name" : std::strerror(error), dir_);
}

void FolderLock::check_sees(const std::string& dir, const std::string& holder) {
  const Descriptor file(::open((fs::path(dir) / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const int error = errno;
  if (file.is_open() && text_of(file.get()) == holder) return;
  fail(
      "the folder \"{}\" of host {} is not the one that rank 0 saves to ({}): ranks write into one folder, on a disk "
      "that all hosts see under that name; mount it on each, or save to another folder",
      dir, host_name(), file.is_open() ? "another lock is in it" : std::strerror(error));
}

FolderLock::~FolderLock() {
  if (file_.is_open() && is_at(file_.get(), path_)) ::unlink(path_.c_str());
}

}  // namespace sherd::ckpt
