#include "runtime/comm/hosts/store_family.h"

#include <algorithm>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

using std::chrono::milliseconds;

StoreFamily::StoreFamily(int rank, int size, const StoreGroupOptions& options)
    : rank_(rank), size_(size), options_(options), control_(options.connect()) {
  control_->set_at_end(gone_key(rank), "has left the group, or its process has ended");
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
    if (control_->add(poison_key() + "/claim", 1) == 1) control_->set(poison_key(), reason);
    else reason_ = control_->get(poison_key(), std::chrono::seconds(5));
  } catch (const std::exception&) {  // the store is gone, which its other ranks find themselves
  }
}

void StoreFamily::check_usable() const {
  const std::lock_guard lock(reason_mutex_);
  if (!reason_.empty()) throw CommError(reason_);
}

std::string StoreFamily::failure(std::span<const int> awaited) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (!reason_.empty()) return reason_;
  }
  if (std::string text = look(poison_key()); !text.empty()) {
    const std::lock_guard lock(reason_mutex_);
    return reason_ = std::move(text);
  }
  for (const int rank : awaited)
    if (const std::string text = look(gone_key(rank)); !text.empty()) return fmt::format("rank {} {}", rank, text);
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
