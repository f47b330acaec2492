// Functions of the C library under their own names, which a preloaded library has before the C library: each looks
// whether it is the call that must go wrong, and else goes on to the real one. Threads may call all of them.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

enum Call { open_, read_, write_, sync_, close_, rename_, mkdir_, unlink_, truncate_, allocate_, flush_, lock_, stat_ };
constexpr std::string_view kNames[] = {"open",   "read",     "write",    "sync",  "close", "rename", "mkdir",
                                       "unlink", "truncate", "allocate", "flush", "lock",  "stat"};

struct Plan {
  std::vector<std::string> under;
  std::string rank, call, mark, counts;
  long at = 0;
  int error = 0, signal = 0;
  bool lasts = false;
  bool happens = false, is_counting = false;  // here
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

Plan read_plan() {
  Plan plan;
  const std::string under = variable("FILE_FAULT_UNDER");
  for (std::size_t begin = 0; begin < under.size();) {
    const std::size_t end = std::min(under.find(':', begin), under.size());
    plan.under.push_back(under.substr(begin, end - begin));
    begin = end + 1;
  }
  plan.call = variable("FILE_FAULT_CALL");
  plan.at = std::atol(variable("FILE_FAULT_AT").c_str());
  plan.error = std::atoi(variable("FILE_FAULT_ERROR").c_str());
  plan.signal = std::atoi(variable("FILE_FAULT_SIGNAL").c_str());
  plan.lasts = variable("FILE_FAULT_LASTS") == "1";
  plan.mark = variable("FILE_FAULT_MARK");
  plan.counts = variable("FILE_FAULT_COUNTS");
  plan.rank = variable("SHERD_RANK");
  const std::string rank = variable("FILE_FAULT_RANK");
  plan.is_counting = !plan.counts.empty() && !plan.under.empty();
  plan.happens = plan.at > 0 && (rank.empty() || rank == plan.rank) &&
                 (plan.mark.empty() || ::access(plan.mark.c_str(), F_OK) != 0);
  return plan;
}

// Never destroyed: calls come after the destructors of the program, too.
const Plan& plan() {
  static const Plan& plan = *new Plan(read_plan());
  return plan;
}

constexpr std::size_t kMostPlaces = 8;
std::array<std::array<std::atomic<long>, std::size(kNames)>, kMostPlaces> counts;
std::atomic<bool> has_happened{false};

/// The number of the path in FILE_FAULT_UNDER that is `path` or above it, -1 if none is.
int place_of(const std::string& path) {
  for (std::size_t i = 0; i < plan().under.size() && i < kMostPlaces; ++i) {
    const std::string& under = plan().under[i];
    if (path.starts_with(under) && (path.size() == under.size() || path[under.size()] == '/'))
      return static_cast<int>(i);
  }
  return -1;
}

// By system calls: this library's own names are not for itself.
bool append_to(const std::string& path, int flags, const std::string& text) {
  const long file = ::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
  if (file < 0) return false;
  ::syscall(SYS_write, file, text.data(), text.size());
  ::syscall(SYS_close, file);
  return true;
}

/// Whether the call, the `count`th of its kind, must fail; errno says why. A signal is sent here.
bool goes_wrong(Call call, long count, const std::string& path) {
  if (!plan().happens || kNames[call] != plan().call) return false;
  const bool is_again = plan().lasts && count > plan().at && has_happened;
  if (count != plan().at && !is_again) return false;
  if (!is_again && !plan().mark.empty()) {
    const std::string text = plan().rank + " " + plan().call + " " + std::to_string(count) + " " + path + "\n";
    if (!append_to(plan().mark, O_EXCL, text)) return false;  // another process was first
  }
  has_happened = true;
  if (plan().signal != 0) ::kill(::getpid(), plan().signal);
  if (plan().error != 0) errno = plan().error;
  return plan().error != 0;
}

bool goes_wrong(Call call, const std::string& path) {
  if (!plan().happens && !plan().is_counting) return false;
  const int before = errno, place = place_of(path);
  if (place < 0) return false;
  std::array<std::atomic<long>, std::size(kNames)>& here = counts[static_cast<std::size_t>(place)];
  // Calls of all places count together where one of them must go wrong.
  long count = ++here[call];
  for (const auto& other : counts) count += &other == &here ? 0 : other[call].load();
  errno = before;
  return goes_wrong(call, count, path);
}

std::string path_of(int file) {
  std::array<char, 4096> path;
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path.data(), path.size());
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

std::string path_at(int folder, const char* path) {
  if (!path) return "";
  if (path[0] == '/') return path;
  if (folder != AT_FDCWD) return path_of(folder) + "/" + path;
  std::array<char, 4096> here;
  return ::getcwd(here.data(), here.size()) ? std::string(here.data()) + "/" + path : path;
}

bool is_idle() { return !plan().happens && !plan().is_counting; }

bool wrong_at(Call call, int folder, const char* path) { return !is_idle() && goes_wrong(call, path_at(folder, path)); }
bool wrong_at(Call call, const char* path) { return wrong_at(call, AT_FDCWD, path); }

bool wrong_of(Call call, int file) {
  if (is_idle()) return false;
  const int before = errno;
  const std::string path = path_of(file);
  errno = before;
  return goes_wrong(call, path);
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list more) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

using Open = int (*)(const char*, int, ...);
using OpenAt = int (*)(int, const char*, int, ...);
using OpenStream = std::FILE* (*)(const char*, const char*);
using Read = ssize_t (*)(int, void*, std::size_t);
using ReadAt = ssize_t (*)(int, void*, std::size_t, off_t);
using Write = ssize_t (*)(int, const void*, std::size_t);
using WriteAt = ssize_t (*)(int, const void*, std::size_t, off_t);
using OfFile = int (*)(int);
using OfPath = int (*)(const char*);
using Allocate = int (*)(int, int, off_t, off_t);
using Look = int (*)(const char*, struct stat*);

/// How far the wall clock is off, in seconds: further with each look at it.
long clock_error() {
  static const long jump = std::atol(variable("FILE_FAULT_CLOCK").c_str());
  static std::atomic<long> looks{0};
  return jump == 0 ? 0 : jump * ++looks;
}

[[gnu::destructor]] void write_counts() {
  if (!plan().is_counting) return;
  std::string text;
  for (std::size_t place = 0; place < plan().under.size() && place < kMostPlaces; ++place)
    for (std::size_t call = 0; call < std::size(kNames); ++call)
      if (const long count = counts[place][call]; count > 0)
        text += plan().rank + " " + plan().under[place] + " " + std::string(kNames[call]) + " " +
                std::to_string(count) + "\n";
  append_to(plan().counts, O_APPEND, text);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int open(const char* path, int flags, ...) {
  static const auto real = next<Open>("open");
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return wrong_at(open_, path) ? -1 : real(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  static const auto real = next<Open>("open64");
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return wrong_at(open_, path) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static const auto real = next<OpenAt>("openat");
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return wrong_at(open_, folder, path) ? -1 : real(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  static const auto real = next<OpenAt>("openat64");
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return wrong_at(open_, folder, path) ? -1 : real(folder, path, flags, mode);
}

std::FILE* fopen(const char* path, const char* mode) {
  static const auto real = next<OpenStream>("fopen");
  return wrong_at(open_, path) ? nullptr : real(path, mode);
}

std::FILE* fopen64(const char* path, const char* mode) {
  static const auto real = next<OpenStream>("fopen64");
  return wrong_at(open_, path) ? nullptr : real(path, mode);
}

ssize_t read(int file, void* to, std::size_t bytes) {
  static const auto real = next<Read>("read");
  return wrong_of(read_, file) ? -1 : real(file, to, bytes);
}

ssize_t pread(int file, void* to, std::size_t bytes, off_t at) {
  static const auto real = next<ReadAt>("pread");
  return wrong_of(read_, file) ? -1 : real(file, to, bytes, at);
}

ssize_t pread64(int file, void* to, std::size_t bytes, off_t at) {
  static const auto real = next<ReadAt>("pread64");
  return wrong_of(read_, file) ? -1 : real(file, to, bytes, at);
}

ssize_t write(int file, const void* from, std::size_t bytes) {
  static const auto real = next<Write>("write");
  return wrong_of(write_, file) ? -1 : real(file, from, bytes);
}

ssize_t pwrite(int file, const void* from, std::size_t bytes, off_t at) {
  static const auto real = next<WriteAt>("pwrite");
  return wrong_of(write_, file) ? -1 : real(file, from, bytes, at);
}

ssize_t pwrite64(int file, const void* from, std::size_t bytes, off_t at) {
  static const auto real = next<WriteAt>("pwrite64");
  return wrong_of(write_, file) ? -1 : real(file, from, bytes, at);
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const struct iovec*, int)>("writev");
  return wrong_of(write_, file) ? -1 : real(file, parts, count);
}

int fflush(std::FILE* stream) {
  static const auto real = next<int (*)(std::FILE*)>("fflush");
  return stream && wrong_of(flush_, ::fileno(stream)) ? EOF : real(stream);
}

int fsync(int file) {
  static const auto real = next<OfFile>("fsync");
  return wrong_of(sync_, file) ? -1 : real(file);
}

int fdatasync(int file) {
  static const auto real = next<OfFile>("fdatasync");
  return wrong_of(sync_, file) ? -1 : real(file);
}

int close(int file) {  // it closes, whatever it says
  static const auto real = next<OfFile>("close");
  const bool fails = wrong_of(close_, file);
  const int error = errno, result = real(file);
  if (!fails) return result;
  errno = error;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return wrong_at(rename_, to) ? -1 : real(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  static const auto real = next<int (*)(int, const char*, int, const char*)>("renameat");
  return wrong_at(rename_, to_folder, to) ? -1 : real(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static const auto real = next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  return wrong_at(rename_, to_folder, to) ? -1 : real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  return wrong_at(mkdir_, path) ? -1 : real(path, mode);
}

int unlink(const char* path) noexcept {
  static const auto real = next<OfPath>("unlink");
  return wrong_at(unlink_, path) ? -1 : real(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto real = next<int (*)(int, const char*, int)>("unlinkat");
  return wrong_at(unlink_, folder, path) ? -1 : real(folder, path, flags);
}

int rmdir(const char* path) noexcept {
  static const auto real = next<OfPath>("rmdir");
  return wrong_at(unlink_, path) ? -1 : real(path);
}

int remove(const char* path) noexcept {
  static const auto real = next<OfPath>("remove");
  return wrong_at(unlink_, path) ? -1 : real(path);
}

int truncate(const char* path, off_t bytes) noexcept {
  static const auto real = next<int (*)(const char*, off_t)>("truncate");
  return wrong_at(truncate_, path) ? -1 : real(path, bytes);
}

int ftruncate(int file, off_t bytes) noexcept {
  static const auto real = next<int (*)(int, off_t)>("ftruncate");
  return wrong_of(truncate_, file) ? -1 : real(file, bytes);
}

int fallocate(int file, int mode, off_t at, off_t bytes) {
  static const auto real = next<Allocate>("fallocate");
  return wrong_of(allocate_, file) ? -1 : real(file, mode, at, bytes);
}

int posix_fallocate(int file, off_t at, off_t bytes) {
  static const auto real = next<int (*)(int, off_t, off_t)>("posix_fallocate");
  return wrong_of(allocate_, file) ? errno : real(file, at, bytes);
}

int flock(int file, int operation) noexcept {
  static const auto real = next<int (*)(int, int)>("flock");
  return wrong_of(lock_, file) ? -1 : real(file, operation);
}

int stat(const char* path, struct stat* status) noexcept {
  static const auto real = next<Look>("stat");
  return wrong_at(stat_, path) ? -1 : real(path, status);
}

int lstat(const char* path, struct stat* status) noexcept {
  static const auto real = next<Look>("lstat");
  return wrong_at(stat_, path) ? -1 : real(path, status);
}

int fstat(int file, struct stat* status) noexcept {
  static const auto real = next<int (*)(int, struct stat*)>("fstat");
  return wrong_of(stat_, file) ? -1 : real(file, status);
}

int clock_gettime(clockid_t clock, struct timespec* now) noexcept {
  static const auto real = next<int (*)(clockid_t, struct timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += clock_error();
  return result;
}

int gettimeofday(struct timeval* now, void* zone) noexcept {
  static const auto real = next<int (*)(struct timeval*, void*)>("gettimeofday");
  const int result = real(now, zone);
  if (result == 0) now->tv_sec += clock_error();
  return result;
}

std::time_t time(std::time_t* now) noexcept {
  static const auto real = next<std::time_t (*)(std::time_t*)>("time");
  const std::time_t result = real(nullptr) + clock_error();
  if (now) *now = result;
  return result;
}

}  // extern "C"
#pragma GCC visibility pop
