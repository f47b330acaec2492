// Writers hold a lock on the folder, so that looking for dead files and replacing one is a single step; readers need
// none, because a file appears whole by rename. All access goes through the folder's descriptor, whose owner and mode
// were checked: nobody can swap a path under it.
#include "runtime/comm/store/rendezvous_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/store/hmac.h"
#include "runtime/os/descriptor.h"
#include "runtime/os/process_status.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {
namespace {

constexpr std::string_view kSuffix = ".store";
constexpr std::size_t kMaxFile = 1024;

/// A writer, told from a later process with the same number by the time it started (clock ticks after boot).
struct Writer {
  long pid = 0;
  std::string started;
};

/// When a process that runs has started; empty if it does not run any more.
std::string start_of(long pid) {
  const std::optional<ProcessStatus> status = process_status(static_cast<pid_t>(pid));
  return status && !status->has_ended() ? status->started : std::string();
}

struct Record {
  Writer writer;
  StoreAddress address;
};

std::string print(const Record& record) {
  return fmt::format("sherd-store 1\npid {}\nstarted {}\nport {}\nsecret {}\n", record.writer.pid,
                     record.writer.started, record.address.port, record.address.secret);
}

std::optional<Record> parse(const std::string& content) {
  std::istringstream words(content);
  std::string magic, version, pid, started, port, secret;
  Record record;
  words >> magic >> version >> pid >> record.writer.pid >> started >> record.writer.started >> port >>
      record.address.port >> secret >> record.address.secret;
  // Printing what was read tells whether all of it was understood.
  if (!words || print(record) != content || record.address.port < 1 || record.address.port > 65535) return std::nullopt;
  return record;
}

bool is_live(const Record& record) { return record.writer.started == start_of(record.writer.pid); }

std::string file_name(const std::string& job) {
  std::string name;
  for (const char c : job.substr(0, 64)) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  // What the readable part leaves out still tells jobs apart.
  const Digest digest = sha256(job);
  for (const std::size_t i : up_to(8)) name += fmt::format("{}{:02x}", i == 0 ? "-" : "", digest[i]);
  return name + std::string(kSuffix);
}

Descriptor open_folder(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  check(folder.get() >= 0, "cannot open the folder {}, in which ranks find each other: {}", path, std::strerror(errno));
  struct stat status{};
  check(
      ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0,
      "the folder {}, in which ranks find each other, is not private to user {}; remove it, or set XDG_RUNTIME_DIR to "
      "a folder of this user",
      path, ::geteuid());
  return folder;
}

/// The content of a file, or nothing if there is none; what is too long to be one of ours reads as empty.
std::optional<std::string> read_at(int folder, const std::string& name) {
  const Descriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  std::string content(kMaxFile + 1, '\0');
  const ssize_t size = ::read(file.get(), content.data(), content.size());
  content.resize(size < 0 || size > static_cast<ssize_t>(kMaxFile) ? 0 : static_cast<std::size_t>(size));
  return content;
}

std::vector<std::string> names_in(int folder) {
  std::vector<std::string> names;
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(copy < 0 ? nullptr : ::fdopendir(copy), ::closedir);
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) names.emplace_back(entry->d_name);
  return names;
}

/// With the folder locked no file is half written, so that all temporary ones are left-overs.
void remove_dead_files(int folder) {
  for (const std::string& name : names_in(folder)) {
    const bool temporary = name.starts_with(".tmp-");
    if (!temporary && !name.ends_with(kSuffix)) continue;
    const auto content = read_at(folder, name);
    const auto record = content ? parse(*content) : std::nullopt;
    if (temporary || !record || !is_live(*record)) ::unlinkat(folder, name.c_str(), 0);
  }
}

void write_whole(int folder, const std::string& path, const std::string& name, const std::string& content) {
  const std::string temporary = ".tmp-" + random_hex(8);
  const Descriptor file(
      ::openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const bool written =
      file.get() >= 0 && ::write(file.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size());
  if (written && ::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0) return;
  const int error = errno;
  ::unlinkat(folder, temporary.c_str(), 0);
  fail("cannot write {}/{}, by which ranks find each other: {}", path, name, std::strerror(error));
}

}  // namespace

std::string rendezvous_folder(const std::string& runtime_folder) {
  struct stat status{};
  // Batch systems pass on the variable of the login host, whose folder need not exist here.
  const bool usable = !runtime_folder.empty() && ::stat(runtime_folder.c_str(), &status) == 0 &&
                      S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
  const std::string path = usable ? runtime_folder + "/sherd" : fmt::format("/tmp/sherd-{}", ::geteuid());
  const bool is_there = ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
  check(is_there, "cannot make the folder {}: {}", path, std::strerror(errno));
  open_folder(path);
  return path;
}

PublishedAddress::PublishedAddress(std::string folder, const std::string& job, const StoreAddress& address)
    : folder_(std::move(folder)), name_(file_name(job)) {
  const Descriptor directory = open_folder(folder_);
  ::flock(directory.get(), LOCK_EX);
  remove_dead_files(directory.get());
  if (const auto content = read_at(directory.get(), name_)) {
    const auto record = parse(*content);
    fail(
        "the live process {} already hosts the store of job '{}' ({}/{}); two jobs on one host need different job "
        "ids, or SHERD_STORE",
        record ? record->writer.pid : 0, job, folder_, name_);
  }
  content_ = print({{::getpid(), start_of(::getpid())}, address});
  write_whole(directory.get(), folder_, name_, content_);
}

PublishedAddress::~PublishedAddress() {
  const Descriptor directory(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory.get() < 0) return;
  ::flock(directory.get(), LOCK_EX);
  if (read_at(directory.get(), name_) == content_) ::unlinkat(directory.get(), name_.c_str(), 0);
}

StoreAddress await_address(const std::string& folder, const std::string& job, std::chrono::milliseconds deadline,
                           const WaitNotice& notice) {
  const auto start = std::chrono::steady_clock::now();
  NoticeClock clock(start, notice.after);
  const Descriptor directory = open_folder(folder);
  const std::string name = file_name(job);
  std::string seen = "no file is there";
  for (std::chrono::milliseconds pause{2};; pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    if (const auto content = read_at(directory.get(), name)) {
      const auto record = parse(*content);
      if (record && is_live(*record)) return record->address;
      seen = record ? fmt::format("the file there is of process {}, which has ended", record->writer.pid)
                    : "the file there is not readable";
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    if (notice.say && clock.is_due(start + waited))
      notice.say(fmt::format("waiting for {:.1f} s for rank 0 to publish its store in {}/{} ({})",
                             std::chrono::duration<double>(waited).count(), folder, name, seen));
    if (waited >= deadline)
      throw CommError(
          fmt::format("rank 0 of job '{}' has not published its store in {}/{} within {:.3g} s ({}); does "
                      "rank 0 run on this host?",
                      job, folder, name, std::chrono::duration<double>(waited).count(), seen));
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline - waited));
  }
}

}  // namespace sherd
