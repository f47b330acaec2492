// The limit of a transport between two processes of one host: the least that moves the bytes of a collective. Two
// pinned processes share one memfd that already holds what each of them contributes; there are no messages, checks or
// deadlines. `shm_limit` is asked as `collectives` is (call_works.cpp), BYTES being a multiple of 256 up to 2^30.
//
//   all_gather      each process copies both shards from the segment to its own full tensor
//   reduce_scatter  each process adds its half of both full tensors, rank 0's first, and writes its shard of the result
//
// Stores are non-temporal or plain, whichever a first trial of the size finds faster.
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr int kTrials = 3;

// What the two processes tell each other: at the start of the segment.
struct Control {
  alignas(64) std::atomic<int> come[2]{};  // barriers that a process has come to
  alignas(64) bool gathers = false;
  std::size_t bytes = 0;
  std::int64_t calls = 0;
  bool streams = false;
  bool fails = false;
};

struct Process {
  int rank;
  Control* control;
  std::byte* data[2];  // each process's part of the segment, kMostBytes
  std::byte* own;      // private, kMostBytes
  int barriers = 0;

  void barrier() {
    control->come[rank].store(++barriers, std::memory_order_release);
    while (control->come[1 - rank].load(std::memory_order_acquire) < barriers) _mm_pause();
  }
};

template <bool kStreams>
__attribute__((target("avx2"))) void store(std::byte* to, __m256 value) {
  if constexpr (kStreams) _mm256_stream_ps(reinterpret_cast<float*>(to), value);
  else _mm256_store_ps(reinterpret_cast<float*>(to), value);
}

template <bool kStreams>
__attribute__((target("avx2"))) void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 128)
    for (std::size_t i = 0; i < 128; i += 32)
      store<kStreams>(to + at + i, _mm256_load_ps(reinterpret_cast<const float*>(from + at + i)));
  _mm_sfence();
}

template <bool kStreams>
__attribute__((target("avx2"))) void add_bytes(std::byte* to, const std::byte* a, const std::byte* b,
                                               std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 128)
    for (std::size_t i = 0; i < 128; i += 32)
      store<kStreams>(to + at + i, _mm256_add_ps(_mm256_load_ps(reinterpret_cast<const float*>(a + at + i)),
                                                 _mm256_load_ps(reinterpret_cast<const float*>(b + at + i))));
  _mm_sfence();
}

template <bool kStreams>
void move_once(Process& side, std::size_t bytes) {
  const std::size_t half = bytes / 2;
  side.barrier();  // both sides' contributions are there
  if (side.control->gathers) {
    for (const int peer : {side.rank, 1 - side.rank})
      copy_bytes<kStreams>(side.own + static_cast<std::size_t>(peer) * half, side.data[peer], half);
  } else {
    const std::size_t first = static_cast<std::size_t>(side.rank) * half;
    add_bytes<kStreams>(side.own, side.data[0] + first, side.data[1] + first, half);
  }
  side.barrier();  // and may be overwritten
}

/// Seconds per call on this process.
double run_calls(Process& side, bool streams, std::int64_t calls) {
  const std::size_t bytes = side.control->bytes;
  side.barrier();
  return seconds_per_call(calls, [&] { streams ? move_once<true>(side, bytes) : move_once<false>(side, bytes); });
}

/// Both processes; returns the mean of the asked calls.
double answer(Process& side) {
  Control& control = *side.control;
  double trial[2];
  for (const bool streams : {false, true}) {
    run_calls(side, streams, 1);  // touches the pages
    trial[streams] = run_calls(side, streams, kTrials);
  }
  if (side.rank == 0) control.streams = trial[1] < trial[0];
  side.barrier();
  return run_calls(side, control.streams, control.calls);
}

/// A sum of 1 and 2 is 3, and a gathered tensor holds each rank's number.
bool is_right(const Process& side) {
  const auto* result = reinterpret_cast<const float*>(side.own);
  const std::size_t half = side.control->bytes / 2 / sizeof(float);
  if (side.control->gathers) return result[0] == 1 && result[2 * half - 1] == 2;
  return result[0] == 3 && result[half - 1] == 3;
}

std::byte* map_pages(int fd, std::size_t bytes) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  check(start != MAP_FAILED, "shm_limit: mmap: {}", std::strerror(errno));
  ::madvise(start, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(start);
}

/// One request on both processes; seconds on rank 0.
double serve_one(Process& side) {
  std::fill_n(reinterpret_cast<float*>(side.data[side.rank]), side.control->bytes / sizeof(float),
              static_cast<float>(side.rank + 1));
  const double seconds = answer(side);
  if (!is_right(side)) side.control->fails = true;
  side.barrier();
  return seconds;
}

/// Between requests it waits asleep only by being asked; a short nap keeps the core free meanwhile.
[[noreturn]] void serve_as_second(Process& side) {
  for (;;) {
    while (side.control->come[0].load(std::memory_order_acquire) <= side.barriers) ::usleep(200);
    side.barrier();
    serve_one(side);
  }
}

// The second process ends with this one.
Ready begin_shm_limit(std::span<const std::string_view> args) {
  take_flags(args, {});
  constexpr std::size_t kControlBytes = 1 << 21, kSegmentBytes = kControlBytes + 2 * kMostBytes;
  const Descriptor file(::memfd_create("shm_limit", MFD_CLOEXEC));
  const bool is_made = file.is_open() && ::ftruncate(file.get(), kSegmentBytes) == 0;
  check(is_made, "shm_limit: memfd: {}", std::strerror(errno));
  std::byte* segment = map_pages(file.get(), kSegmentBytes);
  Process side{0, ::new (segment) Control, {segment + kControlBytes, segment + kControlBytes + kMostBytes}, nullptr};
  const pid_t second = ::fork();
  check(second >= 0, "shm_limit: fork: {}", std::strerror(errno));
  if (second == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  side.rank = second == 0 ? 1 : 0;
  side.own = map_pages(-1, kMostBytes);
  pin_to_cpu(side.rank);
  if (second == 0) serve_as_second(side);
  return {{{"peer", "hand-written shared memory"}}, [side](const std::string& request) mutable -> nlohmann::json {
            const auto [words, numbers] = asked(request, "all_gather|reduce_scatter BYTES CALLS");
            const auto bytes = static_cast<std::size_t>(numbers[0]);
            check(bytes % 256 == 0 && bytes <= kMostBytes, "shm_limit: {} is no multiple of 256 up to 2^30", bytes);
            Control& control = *side.control;
            control.gathers = words[0] == "all_gather";
            control.bytes = bytes;
            control.calls = numbers[1];
            side.barrier();
            const double seconds = serve_one(side);
            check(!control.fails, "shm_limit: wrong result");
            return {{"seconds", {seconds}}, {"streams", control.streams}};
          }};
}

constexpr Works::value_type kShmWorks[] = {{"shm_limit", begin_shm_limit}};

}  // namespace

Works shm_works() { return kShmWorks; }

}  // namespace sherd::bench
