#pragma once
// The primitives of device.h as the C++ compiler compiles them. The functions of namespace `emulated` are the emulated
// GPU; it lives with the tests (tests/support/emulated_gpu), so nothing of it is in a library that users load.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/tensor/dtype.h"

namespace sherd::cuda {

namespace emulated {

/// Where the running thread is; the emulator sets it at every switch. One kernel thread runs at a time.
struct Coordinates {
  int thread = 0, threads = 0;
  int block[3] = {0, 0, 0}, blocks[3] = {0, 0, 0};
  std::byte* shared = nullptr;
  std::size_t shared_bytes = 0;
  struct Range {
    std::uintptr_t start = 0, end = 0;
    bool pinned = false;
  };
  Range seen[4];  // memory that this kernel may access, found before: most accesses are to the same few tensors
  std::int64_t pinned_atomics = 0;
};
extern Coordinates here;

/// Ends the kernel with an error that names it; `what` is printf text.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* what, ...);
/// Returns when all threads of the block are here.
void meet_block();
/// Bytes a lane may give to a collective of its warp.
inline constexpr std::size_t kLaneBytes = 128;
/// Gives `bytes` bytes to the collective `what`; returns when all 32 lanes of the warp are at the same one, with lane
/// i's bytes at i * bytes of the result. They stay until the lanes meet again. The last lane to come runs `change` on
/// them.
const std::byte* meet_warp(const char* what, const void* mine, std::size_t bytes,
                           void (*change)(std::byte* lanes) = nullptr);
/// Checks that `bytes` bytes at `p` may be accessed at once and are device memory, pinned memory or the block's own.
void check_new_access(const char* what, const void* p, std::size_t bytes);
inline void check_access(const char* what, const void* p, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (address % (bytes < 16 ? bytes : 16) == 0)
    for (const Coordinates::Range& range : here.seen)
      if (address >= range.start && address + bytes <= range.end) return;
  check_new_access(what, p, bytes);
}
/// Counts an atomic that goes over the bus, which takes a device a microsecond, one after another.
inline void count_atomic(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  for (const Coordinates::Range& range : here.seen)
    if (address >= range.start && address < range.end) here.pinned_atomics += range.pinned;
}
/// Copies 16 bytes, or zeros if `from` is null, when this thread waits for them; until then `to` holds NaN.
void copy_later(void* to, const void* from);
/// Closes a group of copies; returns when all but the last `groups` groups are there.
void commit_copies();
void wait_copies(int groups);
/// Queues a kernel whose every thread runs `body`. `pointers` are arguments: null, or in device or pinned memory.
cudaError_t enqueue(cudaStream_t stream, const void* kernel, dim3 blocks, unsigned threads, std::size_t shared_bytes,
                    std::vector<const void*> pointers, std::function<void()> body);

/// The pointers among the arguments of a launch.
template <class... T>
std::vector<const void*> pointers_of(const std::tuple<T...>& arguments) {
  std::vector<const void*> pointers;
  const auto add = [&pointers](const auto& argument) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>) pointers.push_back(argument);
  };
  std::apply([&add](const auto&... argument) { (add(argument), ...); }, arguments);
  return pointers;
}

}  // namespace emulated

inline int thread_index() { return emulated::here.thread; }
inline int block_index() { return emulated::here.block[0]; }
inline int block_index_y() { return emulated::here.block[1]; }
inline int block_index_z() { return emulated::here.block[2]; }
inline int block_threads() { return emulated::here.threads; }
inline int grid_blocks() { return emulated::here.blocks[0]; }
inline int grid_blocks_y() { return emulated::here.blocks[1]; }
inline int grid_blocks_z() { return emulated::here.blocks[2]; }

inline void sync_block() { emulated::meet_block(); }
inline void sync_warp() { emulated::meet_warp("sync_warp", nullptr, 0); }

namespace detail {
template <class T>
T from_lane(const char* what, T v, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if (source < 0 || source >= 32) emulated::fault("%s: source lane %d; a warp has 32", what, source);
  const std::byte* lanes = emulated::meet_warp(what, &v, sizeof v);
  T result;
  std::memcpy(&result, lanes + static_cast<std::size_t>(source) * sizeof v, sizeof result);
  return result;
}
}  // namespace detail

template <class T>
T shuffle(T v, int lane) {
  return detail::from_lane("shuffle", v, lane);
}
template <class T>
T shuffle_xor(T v, int mask) {
  return detail::from_lane("shuffle_xor", v, (thread_index() % 32) ^ mask);
}
template <class T>
T shuffle_down(T v, int n) {
  const int lane = thread_index() % 32;
  return detail::from_lane("shuffle_down", v, n >= 0 && lane + n >= 32 ? lane : lane + n);
}
inline std::uint32_t ballot(bool condition) {
  const std::uint32_t mine = condition;
  const std::byte* lanes = emulated::meet_warp("ballot", &mine, sizeof mine);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    std::uint32_t lane_has = 0;
    std::memcpy(&lane_has, lanes + i * sizeof mine, sizeof lane_has);
    bits |= lane_has << i;
  }
  return bits;
}

inline std::byte* shared_bytes(std::size_t needed = 0) {
  if (needed > emulated::here.shared_bytes)
    emulated::fault("needs %zu bytes of shared memory, was launched with %zu", needed, emulated::here.shared_bytes);
  return emulated::here.shared;
}

// One thread runs at a time and switches only where threads meet, so plain code is atomic.
namespace detail {
template <class T, class Change>
T exchange(const char* what, T* p, Change change) {
  emulated::check_access(what, p, sizeof(T));
  emulated::count_atomic(p);
  const T before = *p;
  *p = change(before);
  return before;
}
}  // namespace detail
inline std::int32_t atomic_add(std::int32_t* p, std::int32_t v) {
  return detail::exchange("atomic_add", p, [v](std::int32_t x) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(v));
  });
}
inline std::uint32_t atomic_add(std::uint32_t* p, std::uint32_t v) {
  return detail::exchange("atomic_add", p, [v](std::uint32_t x) { return x + v; });
}
inline std::uint64_t atomic_add(std::uint64_t* p, std::uint64_t v) {
  return detail::exchange("atomic_add", p, [v](std::uint64_t x) { return x + v; });
}
inline std::int32_t atomic_max(std::int32_t* p, std::int32_t v) {
  return detail::exchange("atomic_max", p, [v](std::int32_t x) { return x > v ? x : v; });
}
inline std::int32_t atomic_min(std::int32_t* p, std::int32_t v) {
  return detail::exchange("atomic_min", p, [v](std::int32_t x) { return x < v ? x : v; });
}
inline std::uint64_t atomic_min(std::uint64_t* p, std::uint64_t v) {
  return detail::exchange("atomic_min", p, [v](std::uint64_t x) { return x < v ? x : v; });
}
inline std::uint64_t atomic_replace(std::uint64_t* p, std::uint64_t expected, std::uint64_t v) {
  return detail::exchange("atomic_replace", p, [=](std::uint64_t x) { return x == expected ? v : x; });
}
inline std::uint64_t load_volatile(const std::uint64_t* p) {
  emulated::check_access("load_volatile", p, sizeof *p);
  return *p;
}

template <class V, bool streamed>
V load_aligned(const void* p) {
  emulated::check_access("load_vec", p, sizeof(V));
  V v;
  std::memcpy(static_cast<void*>(&v), p, sizeof v);
  return v;
}
template <bool streamed, class V>
void store_aligned(void* p, const V& v) {
  emulated::check_access("store_vec", p, sizeof v);
  std::memcpy(p, static_cast<const void*>(&v), sizeof v);
}

// ---- tensor cores and asynchronous copies ----

namespace detail {
/// What a lane gives to a product of fragments, and takes from it. With lane l: rows l / 4 and l / 4 + 8 of a and c,
/// column l / 4 of b; within them the pairs l % 4 and, of a and b, l % 4 + 4.
template <class T>
struct Fragments {
  T a[8], b[4];
  float c[4];
};

/// c += a b for the 32 lanes at `lanes`; each sum is taken in the order k = 0, 1, ... in f32.
template <class T>
void multiply_fragments(std::byte* lanes) {
  auto* fragments = reinterpret_cast<Fragments<T>*>(lanes);
  float a[16][16], b[16][8], c[16][8];
  const auto each = [&](auto visit) {  // visit(lane, row or column, first of two neighbours)
    for (int lane = 0; lane < 32; ++lane) visit(fragments[lane], lane / 4, lane % 4 * 2);
  };
  each([&](const Fragments<T>& f, int line, int pair) {
    for (int i = 0; i < 8; ++i) a[line + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = static_cast<float>(f.a[i]);
    for (int i = 0; i < 4; ++i) b[pair + i % 2 + i / 2 * 8][line] = static_cast<float>(f.b[i]);
    for (int i = 0; i < 4; ++i) c[line + i / 2 * 8][pair + i % 2] = f.c[i];
  });
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  each([&](Fragments<T>& f, int line, int pair) {
    for (int i = 0; i < 4; ++i) f.c[i] = c[line + i / 2 * 8][pair + i % 2];
  });
}
}  // namespace detail

template <class T>
void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  detail::Fragments<T> mine;
  std::memcpy(static_cast<void*>(mine.a), a, sizeof mine.a);
  std::memcpy(static_cast<void*>(mine.b), b, sizeof mine.b);
  std::memcpy(mine.c, c, sizeof mine.c);
  const std::byte* lanes = emulated::meet_warp("mma_m16n8k16", &mine, sizeof mine, detail::multiply_fragments<T>);
  std::memcpy(c, reinterpret_cast<const detail::Fragments<T>*>(lanes)[thread_index() % 32].c, sizeof mine.c);
}

template <int N, bool transposed = false>
void ldmatrix(std::uint32_t (&to)[N], const void* row) {
  static_assert(N == 2 || N == 4);
  const int lane = thread_index() % 32;
  if (lane < 8 * N) emulated::check_access("ldmatrix", row, 16);
  const std::byte* lanes = emulated::meet_warp("ldmatrix", &row, sizeof row);
  for (int m = 0; m < N; ++m)
    for (int i = 0; i < 2; ++i) {
      const int r = transposed ? lane % 4 * 2 + i : lane / 4, c = transposed ? lane / 4 : lane % 4 * 2 + i;
      const std::uint16_t* from = nullptr;
      std::memcpy(&from, lanes + static_cast<std::size_t>(8 * m + r) * sizeof from, sizeof from);
      std::memcpy(reinterpret_cast<std::byte*>(&to[m]) + 2 * i, from + c, 2);
    }
  sync_warp();  // the instruction is done before a lane writes to what another still reads
}

inline void cp_async_16(void* to, const void* from, bool valid = true) {
  emulated::check_access("cp_async_16", to, 16);
  if (valid) emulated::check_access("cp_async_16", from, 16);
  emulated::copy_later(to, valid ? from : nullptr);
}
inline void cp_async_commit() { emulated::commit_copies(); }
template <int N>
void cp_async_wait() {
  emulated::wait_copies(N);
}

inline float half_to_float(f16 x) { return static_cast<float>(x); }
inline f16 float_to_half(float x) { return f16(x); }
inline bf16 float_to_bf16(float x) { return bf16(x); }

template <class T>
std::uint32_t pack_pair(float low, float high) {
  return static_cast<std::uint32_t>(T(high).bits) << 16 | T(low).bits;
}
inline float exp2_fast(float x) { return std::exp2(x); }

}  // namespace sherd::cuda
