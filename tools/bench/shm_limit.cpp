// The limit of a transport between two processes of one host: the smallest program that moves the bytes of a
// collective. Two pinned processes share one memfd that already holds what each of them contributes; there are no
// messages, checks or deadlines. Speaks the benchmarks' protocol: prints an object when ready, then answers each line
// "NAME BYTES CALLS" (NAME all_gather or reduce_scatter, BYTES of the full f32 tensor) with {"seconds": [mean of the
// calls]}.
//
//   all_gather      each process copies both shards from the segment to its own full tensor
//   reduce_scatter  each process adds its half of both full tensors, rank 0's first, and writes its shard of the result
//
// Stores are non-temporal or plain, whichever a first trial of the size finds faster.
#include <fcntl.h>
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr int kTrials = 3;

enum class Request : int { none, all_gather, reduce_scatter, quit };

// What the two processes tell each other: at the start of the segment.
struct Control {
  alignas(64) std::atomic<int> come[2]{};  // barriers that a process has come to
  alignas(64) Request request = Request::none;
  std::size_t bytes = 0;
  int calls = 0;
  bool streams = false;
  bool fails = false;
};

struct Side {
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
__attribute__((target("avx2"))) void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 128)
    for (std::size_t i = 0; i < 128; i += 32)
      store<kStreams>(to + at + i, _mm256_load_ps(reinterpret_cast<const float*>(from + at + i)));
  _mm_sfence();
}

template <bool kStreams>
__attribute__((target("avx2"))) void add(std::byte* to, const std::byte* a, const std::byte* b, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 128)
    for (std::size_t i = 0; i < 128; i += 32)
      store<kStreams>(to + at + i, _mm256_add_ps(_mm256_load_ps(reinterpret_cast<const float*>(a + at + i)),
                                                 _mm256_load_ps(reinterpret_cast<const float*>(b + at + i))));
  _mm_sfence();
}

template <bool kStreams>
void move_once(Side& side, std::size_t bytes) {
  const std::size_t half = bytes / 2;
  side.barrier();  // both sides' contributions are there
  if (side.control->request == Request::all_gather) {
    for (const int peer : {side.rank, 1 - side.rank})
      copy<kStreams>(side.own + static_cast<std::size_t>(peer) * half, side.data[peer], half);
  } else {
    const std::size_t first = static_cast<std::size_t>(side.rank) * half;
    add<kStreams>(side.own, side.data[0] + first, side.data[1] + first, half);
  }
  side.barrier();  // and may be overwritten
}

/// Seconds per call on this process.
double run_calls(Side& side, bool streams, int calls) {
  const std::size_t bytes = side.control->bytes;
  side.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) streams ? move_once<true>(side, bytes) : move_once<false>(side, bytes);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
}

/// Both processes; returns the mean of the asked calls.
double answer(Side& side) {
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
bool is_right(const Side& side) {
  const auto* result = reinterpret_cast<const float*>(side.own);
  const std::size_t half = side.control->bytes / 2 / sizeof(float);
  if (side.control->request == Request::all_gather) return result[0] == 1 && result[2 * half - 1] == 2;
  return result[0] == 3 && result[half - 1] == 3;
}

std::byte* map(int fd, std::size_t offset, std::size_t bytes) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  if (start == MAP_FAILED) std::perror("shm_limit: mmap"), std::exit(1);
  ::madvise(start, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(start);
}

void pin(int rank) {
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  int left = rank % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && left-- == 0) CPU_SET(cpu, &own);
  ::sched_setaffinity(0, sizeof own, &own);
}

void fill(Side& side) {
  auto* data = reinterpret_cast<float*>(side.data[side.rank]);
  for (std::size_t i = 0; i < side.control->bytes / sizeof(float); ++i) data[i] = static_cast<float>(side.rank + 1);
}

/// One request on both processes; seconds on rank 0.
double serve_one(Side& side) {
  fill(side);
  const double seconds = answer(side);
  if (!is_right(side)) side.control->fails = true;
  side.barrier();
  return seconds;
}

void serve(Side& side) {
  Control& control = *side.control;
  std::printf("{\"peer\": \"hand-written shared memory\"}\n");
  std::fflush(stdout);
  char line[256], name[64];
  while (std::fgets(line, sizeof line, stdin)) {
    unsigned long long bytes = 0;
    int calls = 0;
    const bool is_read = std::sscanf(line, "%63s %llu %d", name, &bytes, &calls) == 3;
    const bool gathers = is_read && std::strcmp(name, "all_gather") == 0;
    if (!is_read || (!gathers && std::strcmp(name, "reduce_scatter") != 0) || bytes < 256 || bytes > kMostBytes ||
        bytes % 256 != 0 || calls < 1) {
      std::printf(
          "{\"error\": \"expected all_gather or reduce_scatter, BYTES (a multiple of 256 up to 2^30), CALLS\"}\n");
      std::fflush(stdout);
      continue;
    }
    control.request = gathers ? Request::all_gather : Request::reduce_scatter;
    control.bytes = bytes;
    control.calls = calls;
    side.barrier();
    const double seconds = serve_one(side);
    if (control.fails) std::printf("{\"error\": \"wrong result\"}\n");
    else std::printf("{\"seconds\": [%.9e], \"streams\": %s}\n", seconds, control.streams ? "true" : "false");
    std::fflush(stdout);
  }
  control.request = Request::quit;
  side.barrier();
}

}  // namespace

int main() {
  const int fd = ::memfd_create("shm_limit", MFD_CLOEXEC);
  constexpr std::size_t kControlBytes = 1 << 21;
  if (fd < 0 || ::ftruncate(fd, kControlBytes + 2 * kMostBytes) != 0) return std::perror("shm_limit: memfd"), 1;
  std::byte* segment = map(fd, 0, kControlBytes + 2 * kMostBytes);
  Side side{0, ::new (segment) Control, {segment + kControlBytes, segment + kControlBytes + kMostBytes}, nullptr};

  const pid_t child = ::fork();
  if (child < 0) return std::perror("shm_limit: fork"), 1;
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    side.rank = 1;
  }
  side.own = map(-1, 0, kMostBytes);
  pin(side.rank);
  if (side.rank == 0) {
    serve(side);
    ::waitpid(child, nullptr, 0);
    return 0;
  }
  for (;;) {
    // Between requests the other process waits asleep only by being asked; a short nap keeps the core free meanwhile.
    while (side.control->come[0].load(std::memory_order_acquire) <= side.barriers) ::usleep(200);
    side.barrier();
    if (side.control->request == Request::quit) ::_exit(0);
    serve_one(side);
  }
}
