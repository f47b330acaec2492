#include "runtime/comm/hosts/store_family.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

using std::chrono::milliseconds;

namespace {

struct LivingFamilies {
  std::mutex mutex;
  std::vector<StoreFamily*> all;
};

/// Never destroyed: a process ends in any order, and a plain program's groups are there until then.
LivingFamilies& living_families() {
  static auto* const living = new LivingFamilies;
  return *living;
}

}  // namespace

StoreFamily::StoreFamily(int rank, int size, const StoreGroupOptions& options)
    : rank_(rank),
      size_(size),
      options_(options),
      control_(options.connect()),
      process_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  control_->set_at_end(gone_key(rank), "has left the group, or its process has ended");
  static const bool is_registered = ::on_exit(leave_all, nullptr) == 0;
  static_cast<void>(is_registered);  // without it the end of a process is taken for a failure
  LivingFamilies& living = living_families();
  const std::lock_guard lock(living.mutex);
  living.all.push_back(this);
}

StoreFamily::~StoreFamily() {
  {
    LivingFamilies& living = living_families();
    const std::lock_guard lock(living.mutex);
    std::erase(living.all, this);
  }
  if (std::uncaught_exceptions() == exceptions_at_start_) leave();
}

void StoreFamily::leave_all(int status, void*) {
  LivingFamilies& living = living_families();
  const std::lock_guard lock(living.mutex);
  for (StoreFamily* const family : living.all)
    if (status == 0) family->leave();
}

// A forked child leaves nothing.
void StoreFamily::leave() noexcept {
  const std::lock_guard lock(reason_mutex_);
  if (!reason_.empty() || process_ != ::getpid()) return;
  try {
    control_->set(left_key(rank_), "1");
  } catch (const Error&) {}  // the store is gone
}

Store& StoreFamily::lane(int index) {
  const std::lock_guard lock(lanes_mutex_);
  std::unique_ptr<Store>& store = lanes_[static_cast<std::size_t>(index)];
  if (!store) store = options_.connect();
  return *store;
}

std::string StoreFamily::look(const std::string& key) {
  try {
    return control_->get(key, milliseconds(0));
  } catch (const KeyNotSet&) { return {}; } catch (const CommError& error) {
    return "the store is gone: " + error.message();
  }
}

void StoreFamily::poison(const std::string& reason) noexcept {
  const std::lock_guard lock(reason_mutex_);
  if (!reason_.empty()) return;
  reason_ = reason;
  try {
    if (control_->add(poison_key(epoch_) + "/claim", 1) == 1) control_->set(poison_key(epoch_), reason);
    else reason_ = control_->get(poison_key(epoch_), std::chrono::seconds(5));
  } catch (const std::exception&) {  // the store is gone, which its other ranks find themselves
  }
}

void StoreFamily::check_usable() const {
  const std::lock_guard lock(reason_mutex_);
  if (!reason_.empty()) throw CommError(reason_);
}

std::string StoreFamily::failure(std::span<const int> awaited) {
  const std::int64_t asked_in = epoch_;
  {
    const std::lock_guard lock(reason_mutex_);
    if (!reason_.empty()) return reason_;
  }
  if (std::string text = look(poison_key(asked_in)); !text.empty()) {
    const std::lock_guard lock(reason_mutex_);
    if (epoch_ != asked_in) return reason_;  // a reset on another thread is over: that was of before
    return reason_ = std::move(text);
  }
  for (const int rank : awaited)
    if (const std::string text = look(gone_key(rank)); !text.empty()) return fmt::format("rank {} {}", rank, text);
  return {};
}

std::string StoreFamily::failure() {
  if (std::string why = failure({}); !why.empty()) return why;
  for (const int rank : up_to(size_)) {
    if (rank == rank_ || look(gone_key(rank)).empty()) continue;
    if (look(left_key(rank)).empty()) return failure({&rank, 1});
  }
  return {};
}

void StoreFamily::reset(std::chrono::nanoseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  const auto key_of = [&](int rank) { return fmt::format("reset/{}/{}", epoch_.load(), rank); };
  control_->set(key_of(rank_), "1");
  for (const int other : up_to(size_))
    for (bool has_come = false; !has_come;) {
      const auto left = std::max(until - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
      try {
        lane(0).get(key_of(other), std::min<milliseconds>(kLook, std::chrono::ceil<milliseconds>(left)));
        has_come = true;
      } catch (const KeyNotSet&) {
        if (const std::string gone = look(gone_key(other)); !gone.empty())
          throw CommError(fmt::format("reset: rank {} {}", other, gone));
        if (left.count() == 0)
          throw CommError(fmt::format("reset: rank {} has not called it within {:.3g} s", other,
                                      std::chrono::duration<double>(deadline).count()));
      }
    }
  const std::lock_guard lock(reason_mutex_);
  ++epoch_;
  reason_.clear();
}

}  // namespace sherd::comm

namespace sherd {

void await_departures(Store& store, int size, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  try {
    for (int rank = 1; rank < size; ++rank)
      store.get(comm::gone_key(rank),
                std::max(std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()),
                         std::chrono::milliseconds(0)));
  } catch (const CommError&) {  // whoever is left has had its time
  }
}

}  // namespace sherd
