// Making, ending and polling communicators; items.cpp has what they put on streams.
#include "tests/support/emulated_nccl/member.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fmt/format.h>

namespace sherd::cuda::nccl::fake {

namespace {

// Ranks whose NCCL_HOSTID differs are on different hosts to NCCL.
std::string this_host() {
  if (const char* asked = std::getenv("NCCL_HOSTID")) return asked;
  char name[64] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

constexpr int kSharesDevices = 23003;  // the first release where ranks may, if NCCL_MULTI_RANK_GPU_ENABLE is 1

bool may_share_devices(int version) {
  const char* asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version >= kSharesDevices && asked && std::string(asked) == "1";
}

}  // namespace

Member::Member(emulated::Gpu& gpu, const Configuration& configuration, HostOrder& order, Settings settings)
    : gpu_(gpu),
      configuration_(configuration),
      order_(order),
      settings_(std::move(settings)),
      device_(emulated::current_device()) {}

void Member::begin(std::function<bool()> over, std::function<void()> then) {
  const std::uint64_t polls = settings_.blocking ? 0 : gpu_.random.below(configuration_.most_polls + 1);
  progress_ = std::make_unique<Progress>(std::move(over), std::move(then), polls);
}

void Member::fail(Result result, const std::string& why) {
  if (result_ != Result::success) return;
  result_ = result;
  error_ = fmt::format("rank {} of {}: {}", rank_, settings_.name, why);
  progress_.reset();
  std::fprintf(stderr, "emulated NCCL: %s\n", error_.c_str());
}

void Member::join(const UniqueId& id, int world, int rank) {
  try {
    board_ = std::make_unique<Board>(id);
  } catch (const std::runtime_error& error) { throw Refused(Result::system_error, error.what()); }
  world_ = world;
  rank_ = rank;
  if (settings_.name.empty()) settings_.name = fmt::format("a communicator of {}", world);
  sends_.assign(static_cast<std::size_t>(world), 0);
  receives_ = sends_;
  if (configuration_.fault.kind == Fault::Kind::fail_init && configuration_.fault.rank == rank)
    throw Refused(Result::system_error, fmt::format("rank {}: its communicator is not made, as was asked for", rank));
  if (mine().joined.load() != 0)
    throw Refused(Result::invalid_usage, fmt::format("rank {} has come twice with one unique id", rank));
  mine().world = world;
  mine().version = configuration_.version;
  mine().device = emulated::number_of_all(device_);
  mine().process = static_cast<std::uint64_t>(::getpid());
  mine().thread = thread_;
  std::snprintf(mine().host, sizeof mine().host, "%s", this_host().c_str());
  mine().joined.store(1, std::memory_order_release);
  begin([this] { return all_have_come(); }, [this] { compare_ranks(); });
}

bool Member::all_have_come() const {
  for (int r = 0; r < kMaxRanks; ++r) {
    if (part(r).joined.load(std::memory_order_acquire) == 0) {
      if (r < world_) return false;
      continue;
    }
    if (part(r).world != world_)
      throw Refused(Result::invalid_usage, fmt::format("rank {} makes a communicator of {} ranks, rank {} one of {}",
                                                       rank_, world_, r, part(r).world));
  }
  return true;
}

void Member::compare_ranks() {
  forget_id(board_->id());
  for (int r = 0; r < world_; ++r) {
    spans_processes_ = spans_processes_ || part(r).process != mine().process;
    if (part(r).version != mine().version)
      throw Refused(Result::invalid_usage,
                    fmt::format("Mismatched NCCL version detected : rank {} has {}, rank {} has {}", rank_,
                                version_text(mine().version), r, version_text(part(r).version)));
    if (r != rank_ && part(r).device == mine().device && std::strcmp(part(r).host, mine().host) == 0 &&
        !may_share_devices(configuration_.version))
      throw Refused(
          Result::invalid_usage,
          fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {}", rank_, r, device_));
  }
}

// Ranks say their color and key on the parent's board; the first of each color makes the id that the others join by.
void Member::split_from(const std::shared_ptr<Member>& parent, int color, int key) {
  const std::uint64_t number = parent->splits_++;
  const std::size_t slot = number % kSplits;
  SplitPart& own = parent->mine().splits[slot];
  own.color = color;
  own.key = key;
  own.number.store(number + 1, std::memory_order_release);
  if (color == kNoColor) return;
  device_ = parent->device_;
  thread_ = parent->thread_;
  begin(
      [this, parent, number, slot, color] {
        std::vector<int> members;
        for (int r = 0; r < parent->world_; ++r) {
          const SplitPart& theirs = parent->part(r).splits[slot];
          if (theirs.number.load(std::memory_order_acquire) <= number) return false;
          if (theirs.color == color) members.push_back(r);
        }
        std::ranges::stable_sort(members, {}, [&](int r) { return parent->part(r).splits[slot].key; });
        SplitPart& first = parent->part(members.front()).splits[slot];
        if (members.front() == parent->rank_ && first.named.load() <= number) {
          first.id = make_id(parent->board_->seed() + number);
          first.named.store(number + 1, std::memory_order_release);
        }
        if (first.named.load(std::memory_order_acquire) <= number) return false;
        const auto place = std::ranges::find(members, parent->rank_) - members.begin();
        const UniqueId id = first.id;
        join(id, static_cast<int>(members.size()), static_cast<int>(place));  // which begins the rest
        return false;
      },
      [] {});
}

Result Member::poll() {
  order_.compare();
  if (!progress_ || result_ != Result::success) return result_;
  try {
    const Progress* const at = progress_.get();
    const auto over = progress_->over;  // may begin what follows
    if (!over() || progress_.get() != at) return Result::in_progress;
    if (progress_->polls > 0) {
      --progress_->polls;
      return Result::in_progress;
    }
    const std::unique_ptr<Progress> done = std::move(progress_);
    done->then();
  } catch (const Refused& refused) { fail(refused.result, refused.what()); }
  return result_;
}

Result Member::complete() {
  for (;;) {
    const Result result = poll();
    if (!settings_.blocking || result != Result::in_progress) return result;
    if (gpu_.run_something()) continue;
    gpu_.lock.unlock();
    std::this_thread::yield();
    gpu_.lock.lock();
  }
}

void Member::check_ready(const char* call, bool if_revoked) const {
  if (result_ != Result::success) throw Refused(result_, error_);
  if (progress_)
    throw Refused(
        Result::invalid_argument,
        fmt::format("{}: Attempt to use communicator before the previous operation returned ncclSuccess", call));
  if ((revoked_ && !if_revoked) || finalized_)
    throw Refused(Result::invalid_usage,
                  fmt::format("{}: the communicator was {}", call, revoked_ ? "revoked" : "finalized"));
}

void Member::finalize() {
  mine().left.store(1, std::memory_order_release);
  begin(
      [this] {
        if (last_ && !last_->done) return false;
        for (int r = 0; r < world_; ++r)
          if (part(r).left.load(std::memory_order_acquire) == 0) return false;
        return true;
      },
      [this] { finalized_ = true; });
}

void Member::revoke() {
  stopped_ = revoked_ = true;
  result_ = Result::success;
  begin([this] { return !last_ || last_->done || gpu_.random.once_in(2); }, [] {});
}

void Member::abort() {
  stopped_ = true;
  progress_.reset();
}

std::uint32_t Member::add_factor(Factor factor) {
  factors_.push_back(std::move(factor));
  return static_cast<std::uint32_t>(factors_.size() - 1) + 5;
}

bool Member::destroy_factor(std::uint32_t op) {
  if (op < 5 || op - 5 >= factors_.size() || !factors_[op - 5].live) return false;
  factors_[op - 5].live = false;
  return true;
}

}  // namespace sherd::cuda::nccl::fake
