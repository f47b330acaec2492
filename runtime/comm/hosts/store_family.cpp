#include "runtime/comm/hosts/store_family.h"

#include <algorithm>

#include "runtime/tensor/error.h"

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
  } catch (const KeyNotSet&) { return {}; }
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
  const std::string all = fmt::format("reset/{}", epoch_.load());
  if (control_->add(all, 1) == size_) control_->set(all + "/done", "1");
  try {
    lane(0).get(all + "/done", std::chrono::ceil<milliseconds>(deadline));
  } catch (const KeyNotSet&) {
    throw CommError(fmt::format("reset: only {} of {} ranks have called it within {:.3g} s", control_->add(all, 0),
                                size_, std::chrono::duration<double>(deadline).count()));
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
