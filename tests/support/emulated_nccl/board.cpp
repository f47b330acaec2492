#include "tests/support/emulated_nccl/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "tests/support/emulated_gpu/random.h"

namespace sherd::cuda::nccl::fake {

namespace {

constexpr std::uint64_t kMagic = 0x4c43434e64726853u;  // "ShrdNCCL"

// What a UniqueId holds.
struct Name {
  std::uint64_t magic, process, nonce;
  std::int64_t file;
};
static_assert(sizeof(Name) <= sizeof(UniqueId));

struct Header {
  std::uint64_t magic, nonce, seed;
};

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
constexpr std::size_t kPartBytes = round_up(sizeof(RankPart));
constexpr std::size_t kBytes = 4096 + kMaxRanks * (kPartBytes + kArenaBytes);

Name name_of_id(const UniqueId& id) {
  Name name;
  std::memcpy(&name, id.bytes, sizeof name);
  return name;
}

// Files of ids that this process made, by nonce; under the lock of the emulated GPU.
std::map<std::uint64_t, int>& made() {
  static auto* files = new std::map<std::uint64_t, int>;
  return *files;
}

}  // namespace

UniqueId make_id(std::uint64_t seed) {
  const int file = ::memfd_create("emulated-nccl", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(kBytes)) != 0)
    throw std::runtime_error(fmt::format("no shared memory: {}", std::strerror(errno)));
  static std::uint64_t count = 0;
  const auto process = static_cast<std::uint64_t>(::getpid());
  const Header header{kMagic, emulated::Random(process << 32 ^ ++count).next(), emulated::Random(seed).next()};
  if (::pwrite(file, &header, sizeof header, 0) != sizeof header)
    throw std::runtime_error(fmt::format("no shared memory: {}", std::strerror(errno)));
  made()[header.nonce] = file;
  const Name name{kMagic, process, header.nonce, file};
  UniqueId id{};
  std::memcpy(id.bytes, &name, sizeof name);
  return id;
}

void forget_id(const UniqueId& id) {
  const auto found = made().find(name_of_id(id).nonce);
  if (found == made().end()) return;
  ::close(found->second);
  made().erase(found);
}

Board::Board(const UniqueId& id) : id_(id) {
  const Name name = name_of_id(id);
  if (name.magic != kMagic) throw std::runtime_error("the unique id is none that ncclGetUniqueId made");
  const std::string path = fmt::format("/proc/{}/fd/{}", name.process, name.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  Header header{};
  if (file < 0 || ::pread(file, &header, sizeof header, 0) != sizeof header || header.nonce != name.nonce) {
    if (file >= 0) ::close(file);
    throw std::runtime_error(fmt::format("process {}, which made the unique id, does not answer", name.process));
  }
  void* mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) throw std::runtime_error(fmt::format("no shared memory: {}", std::strerror(errno)));
  memory_ = static_cast<std::byte*>(mapped);
}

Board::~Board() { ::munmap(memory_, kBytes); }

// The file begins as zeros, which is what atomics and numbers of a part begin with.
RankPart& Board::part(int rank) const {
  return *reinterpret_cast<RankPart*>(memory_ + 4096 + static_cast<std::size_t>(rank) * kPartBytes);
}
std::byte* Board::arena(int rank) const {
  return memory_ + 4096 + kMaxRanks * kPartBytes + static_cast<std::size_t>(rank) * kArenaBytes;
}
std::uint64_t Board::seed() const { return reinterpret_cast<const Header*>(memory_)->seed; }

}  // namespace sherd::cuda::nccl::fake
