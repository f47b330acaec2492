// The threads of a block take turns: each runs to its next meeting (a barrier, a collective of its warp) or to its end.
// Between meetings they run in an order drawn from the seed, so that a missing sync_block() shows as a wrong value
// under most seeds, and shared memory starts as NaN. A thread that never meets costs two switches of a few nanoseconds
// and shares one stack with its neighbours. A fault, also an access to memory that is not there, ends the kernel with a
// report; its fibers are abandoned where they are, as a GPU abandons its threads.
#include "tests/support/emulated_gpu/block.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/cuda/device/device_emulated.h"
#include "tests/support/emulated_gpu/fiber.h"
#include "tests/support/emulated_gpu/memory.h"
#include "tests/support/emulated_gpu/random.h"

namespace sherd::cuda::emulated {

Coordinates here;

namespace {

constexpr int kWarpLanes = 32;
constexpr std::size_t kSharedFenceBytes = 1024;  // after shared memory; a write there is found after the block

enum class At { start, ready, barrier, warp, end };

struct Thread {
  Fiber* fiber = nullptr;
  At at = At::start;
  const char* meeting = "";  // the collective of the warp it waits at
  int group = 0;             // of its asynchronous copies, the one that is open
};

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Warp {
  int arrived = 0;
  unsigned turn = 0;  // results of one meeting stay while lanes gather for the next: two places, used in turn
  const char* meeting = "";
  std::size_t bytes = 0;
};

// 0 to n - 1, each once: start, start + stride, ... with a stride that has no factor in common with n.
class Order {
 public:
  Order(Random& random, int n) : n_(n), at_(static_cast<int>(random.below(static_cast<std::uint64_t>(n)))) {
    stride_ = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(n)));
    while (std::gcd(stride_, n) != 1) stride_ = stride_ % n + 1;
  }
  int next() {
    const int now = at_;
    at_ += stride_;
    if (at_ >= n_) at_ -= n_;
    return now;
  }

 private:
  int n_, at_, stride_;
};

struct Failure {};  // thrown through a kernel thread by fault()

class Machine {
 public:
  KernelResult run(const KernelCall& call, std::uint64_t seed);
  void run_threads();  // what every fiber does
  void meet_block();
  const std::byte* meet_warp(const char* what, const void* mine, std::size_t bytes, void (*change)(std::byte*));
  void copy_later(void* to, const void* from);
  void commit_copies() { ++self().group; }
  void wait_copies(int groups);
  void fail(const char* text);
  bool on_stack(const void* p) const { return running_ && running_->owns(p); }
  /// True in a kernel thread: another host thread may run beside it.
  bool in_fiber() const { return running_ && pthread_equal(runner_, pthread_self()); }
  void abandon();

 private:
  void run_block();
  bool run_warp(int first, int count);
  void step(int thread);
  void release_barrier();
  void check_fence();
  std::string describe_standstill() const;
  Fiber* take_fiber();
  Thread& self() { return threads_[static_cast<std::size_t>(here.thread)]; }
  std::byte* lanes(std::size_t warp, unsigned turn) {
    return exchange_.data() + (warp * 2 + turn % 2) * kWarpLanes * kLaneBytes;
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::vector<Copy>> copies_;  // under way, per thread
  std::vector<std::byte> exchange_;
  std::vector<std::byte> shared_;
  const KernelCall* call_ = nullptr;
  Fiber* running_ = nullptr;
  void* home_ = nullptr;
  pthread_t runner_{};
  int at_barrier_ = 0, ended_ = 0;
  bool failed_ = false;
  cudaError_t status_ = cudaSuccess;
  std::string report_;
  Random random_{0};
};

Machine& machine() {
  static Machine& the_machine = *new Machine;  // not destroyed: a device may be at work as the process exits
  return the_machine;
}

void fiber_entry() { machine().run_threads(); }

Fiber* Machine::take_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(fibers_.size()));
    fibers_.back()->restart(fiber_entry);
    idle_.push_back(fibers_.back().get());
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

void Machine::run_threads() {
  for (;;) {
    try {
      call_->body();
      if (const auto& copies = copies_[static_cast<std::size_t>(here.thread)]; !copies.empty())
        fault("ended before %zu copies of cp_async_16 were waited for", copies.size());
    } catch (const Failure&) {
    } catch (const std::exception& e) { fail(e.what()); }
    self().at = At::end;
    running_->leave(home_);
  }
}

void Machine::step(int index) {
  Thread& thread = threads_[static_cast<std::size_t>(index)];
  if (!thread.fiber) thread.fiber = take_fiber();
  here.thread = index;
  running_ = thread.fiber;
  thread.fiber->resume(&home_);
  running_ = nullptr;
  if (thread.at == At::end) {
    ++ended_;
    idle_.push_back(thread.fiber);
  }
}

void Machine::run_block() {
  const auto count = static_cast<int>(call_->threads);
  threads_.assign(call_->threads, Thread{});
  if (copies_.size() < call_->threads) copies_.resize(call_->threads);
  warps_.assign((call_->threads + kWarpLanes - 1) / kWarpLanes, Warp{});
  at_barrier_ = ended_ = 0;
  std::memset(shared_.data(), kPoison, shared_.size());
  const auto warps = static_cast<int>(warps_.size());
  while (ended_ < count && !failed_) {
    bool moved = false;
    Order order(random_, warps);
    for (int i = 0; i < warps && !failed_; ++i) {
      const int first = order.next() * kWarpLanes;
      moved |= run_warp(first, std::min(kWarpLanes, count - first));
    }
    if (!moved && !failed_) fail(describe_standstill().c_str());
  }
  check_fence();
}

void Machine::check_fence() {
  const std::byte* end = here.shared + here.shared_bytes;
  const auto* hit = std::find_if(end, end + kSharedFenceBytes, [](std::byte b) { return b != std::byte{kPoison}; });
  if (hit == end + kSharedFenceBytes || failed_) return;
  char text[120];
  std::snprintf(text, sizeof text, "wrote %td bytes beyond its %zu bytes of shared memory", hit - end + 1,
                here.shared_bytes);
  fail(text);
}

// Runs the lanes of a warp until none can go on, or for one turn each. True if one ran.
bool Machine::run_warp(int first, int count) {
  const bool only_one_turn = random_.once_in(4);
  bool moved = false;
  for (bool again = true; again && !failed_;) {
    again = false;
    Order order(random_, count);
    for (int i = 0; i < count && !failed_; ++i) {
      const int t = first + order.next();
      const At at = threads_[static_cast<std::size_t>(t)].at;
      if (at != At::start && at != At::ready) continue;
      moved = again = true;
      step(t);
    }
    if (only_one_turn) break;
  }
  return moved;
}

std::string Machine::describe_standstill() const {
  int in_warp = 0;
  const char* meeting = "";
  for (const Thread& thread : threads_)
    if (thread.at == At::warp) {
      ++in_warp;
      meeting = thread.meeting;
    }
  char text[200];
  std::snprintf(text, sizeof text, "of %u threads, %d wait at sync_block(), %d at %s, %d have ended: they never meet",
                call_->threads, at_barrier_, in_warp, in_warp ? meeting : "a collective of their warp", ended_);
  return text;
}

void Machine::release_barrier() {
  at_barrier_ = 0;
  for (Thread& thread : threads_) thread.at = At::ready;
}

void Machine::meet_block() {
  Thread& thread = self();
  thread.at = At::barrier;
  if (++at_barrier_ == here.threads) release_barrier();
  running_->leave(home_);
}

const std::byte* Machine::meet_warp(const char* what, const void* mine, std::size_t bytes, void (*change)(std::byte*)) {
  if (bytes > kLaneBytes) fault("%s: %zu bytes of a lane; the emulator carries %zu", what, bytes, kLaneBytes);
  const auto index = static_cast<std::size_t>(here.thread / kWarpLanes);
  const auto lane = static_cast<std::size_t>(here.thread % kWarpLanes);
  const std::size_t first = index * kWarpLanes;
  if (first + kWarpLanes > threads_.size())
    fault("%s in a warp of %zu threads; a collective of a warp needs all 32", what, threads_.size() - first);
  Warp& warp = warps_[index];
  Thread& thread = self();
  if (warp.arrived == 0) {
    warp.meeting = what;
    warp.bytes = bytes;
  } else if ((warp.meeting != what && std::strcmp(warp.meeting, what) != 0) || warp.bytes != bytes) {
    fault("%s of %zu bytes, while other lanes of the warp wait at %s of %zu bytes", what, bytes, warp.meeting,
          warp.bytes);
  }
  std::byte* place = lanes(index, warp.turn);
  if (bytes > 0) std::memcpy(place + lane * bytes, mine, bytes);
  thread.at = At::warp;
  thread.meeting = what;
  if (++warp.arrived == kWarpLanes) {
    if (change) change(place);
    warp.arrived = 0;
    ++warp.turn;
    for (std::size_t i = first; i < first + kWarpLanes; ++i) threads_[i].at = At::ready;
  }
  running_->leave(home_);
  return place;
}

void Machine::copy_later(void* to, const void* from) {
  std::memset(to, kPoison, 16);
  copies_[static_cast<std::size_t>(here.thread)].push_back({to, from, self().group});
}

void Machine::wait_copies(int groups) {
  auto& copies = copies_[static_cast<std::size_t>(here.thread)];
  const int first_left = self().group - groups;
  std::size_t done = 0;
  for (; done < copies.size() && copies[done].group < first_left; ++done) {
    if (copies[done].from) std::memcpy(copies[done].to, copies[done].from, 16);
    else std::memset(copies[done].to, 0, 16);
  }
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(done));
}

void Machine::fail(const char* text) {
  if (failed_) return;
  failed_ = true;
  status_ = cudaErrorLaunchFailure;
  char place[120];
  std::snprintf(place, sizeof place, ", block (%d, %d, %d), thread %d: ", here.block[0], here.block[1], here.block[2],
                here.thread);
  report_ = "kernel " + call_->name + place + text;
}

// Called in a signal handler that interrupted a kernel thread: never returns there.
void Machine::abandon() {
  self().at = At::end;
  running_->leave(home_);
}

KernelResult Machine::run(const KernelCall& call, std::uint64_t seed) {
  call_ = &call;
  runner_ = pthread_self();
  random_ = Random(seed);
  failed_ = false;
  status_ = cudaSuccess;
  report_.clear();
  exchange_.resize((call.threads + kWarpLanes - 1) / kWarpLanes * 2 * kWarpLanes * kLaneBytes);
  shared_.resize(call.shared_bytes + 16 + kSharedFenceBytes);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(shared_.data()) % 16;
  here.shared = shared_.data() + (misaligned ? 16 - misaligned : 0);
  here.shared_bytes = call.shared_bytes;
  here.threads = static_cast<int>(call.threads);
  std::fill(std::begin(here.seen), std::end(here.seen), Coordinates::Range{});
  here.pinned_atomics = 0;
  const unsigned extents[3] = {call.blocks.x, call.blocks.y, call.blocks.z};
  for (int d = 0; d < 3; ++d) here.blocks[d] = static_cast<int>(extents[d]);
  // Blocks too may come in any order: start somewhere, walk up or down.
  const std::uint64_t total = std::uint64_t{call.blocks.x} * call.blocks.y * call.blocks.z;
  const std::uint64_t start = random_.below(total);
  const bool up = random_.once_in(2);
  for (std::uint64_t i = 0; i < total && !failed_; ++i) {
    const std::uint64_t block = (start + (up ? i : total - i)) % total;
    here.block[0] = static_cast<int>(block % call.blocks.x);
    here.block[1] = static_cast<int>(block / call.blocks.x % call.blocks.y);
    here.block[2] = static_cast<int>(block / call.blocks.x / call.blocks.y);
    run_block();
  }
  for (auto& copies : copies_) copies.clear();
  if (failed_) {  // abandoned threads left their stacks as they were
    idle_.clear();
    for (const auto& fiber : fibers_) {
      fiber->restart(fiber_entry);
      idle_.push_back(fiber.get());
    }
  }
  call_ = nullptr;
  return {status_, report_, here.pinned_atomics};
}

// ---- accesses to memory that is not there ----

struct sigaction previous_segv;

void on_segv(int signal, siginfo_t* info, void* context) {
  if (machine().in_fiber()) {
    char text[160];
    const Memory& memory = device_memory();
    std::snprintf(text, sizeof text, "illegal access to %p, %s", info->si_addr,
                  memory.in_pool(info->si_addr) ? "beyond what was ever allocated of device memory"
                                                : "which is not device memory");
    machine().fail(text);
    machine().abandon();
  }
  if (device_memory().in_pool(info->si_addr))
    std::fprintf(stderr, "emulated GPU: host code touches device memory at %p\n", info->si_addr);
  // Not ours: as if this handler were not there.
  sigaction(SIGSEGV, &previous_segv, nullptr);
  static_cast<void>(signal);
  static_cast<void>(context);
}

}  // namespace

void catch_illegal_accesses() {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // a handler that never returns must not leave the signal blocked
    return sigaction(SIGSEGV, &action, &previous_segv) == 0;
  }();
  static_cast<void>(installed);
}

KernelResult run_kernel(const KernelCall& call, std::uint64_t seed) { return machine().run(call, seed); }

bool in_kernel() { return machine().in_fiber(); }

void fault(const char* what, ...) {
  char text[300];
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  machine().fail(text);
  throw Failure{};
}

void meet_block() { machine().meet_block(); }

const std::byte* meet_warp(const char* what, const void* mine, std::size_t bytes, void (*change)(std::byte*)) {
  return machine().meet_warp(what, mine, bytes, change);
}

void copy_later(void* to, const void* from) { machine().copy_later(to, from); }
void commit_copies() { machine().commit_copies(); }
void wait_copies(int groups) { machine().wait_copies(groups); }

void check_new_access(const char* what, const void* p, std::size_t bytes) {
  const std::size_t alignment = bytes < 16 ? bytes : 16;
  if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0)
    fault("%s of %zu bytes at %p, which is not a multiple of %zu", what, bytes, p, alignment);
  const auto* address = static_cast<const std::byte*>(p);
  if (address >= here.shared && address + bytes <= here.shared + here.shared_bytes) return;
  if (machine().on_stack(p)) return;
  const auto [start, size] = device_memory().find(p, bytes);
  if (size == 0) fault("%s of %zu bytes at %p, which no allocation of device or pinned memory holds", what, bytes, p);
  std::copy_backward(here.seen, std::end(here.seen) - 1, std::end(here.seen));
  here.seen[0] = {start, start + size, !device_memory().in_pool(p)};
}

}  // namespace sherd::cuda::emulated
