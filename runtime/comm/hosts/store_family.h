#pragma once
// What the groups of one rank over a store share: connections, the reason why they failed, and the count of resets.
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "runtime/comm/hosts/store_group.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

/// The store sets it when a rank has left.
inline std::string gone_key(int rank) { return "gone/" + std::to_string(rank); }

/// Set by a rank that leaves as programs do that end well: it has come to all that it was to come to.
inline std::string left_key(int rank) { return "left/" + std::to_string(rank); }

/// So long a wait sleeps in the store, before it looks for failures.
inline constexpr std::chrono::milliseconds kLook{200};

class StoreFamily : NoCopy {
 public:
  StoreFamily(int rank, int size, const StoreGroupOptions& options);
  /// Leaves, unless by an exception.
  ~StoreFamily();

  /// This rank in the group that all others were divided from.
  int rank() const { return rank_; }
  const WaitNotice& notice() const { return options_.notice; }
  /// Resets completed. Keys begin with it, so that nobody reads what was left before.
  std::int64_t epoch() const { return epoch_; }
  std::string prefix() const { return prefix(epoch_); }

  /// The connection of a lane, made at first use.
  Store& lane(int index);
  /// Fails all groups of all ranks, and takes the first reason that any rank has given.
  void poison(const std::string& reason) noexcept;
  /// Throws CommError with the reason, if this rank knows of one.
  void check_usable() const;
  /// Why to wait no longer for those ranks: another rank has failed the groups, one of them has left, or the store is
  /// gone. Empty: wait.
  std::string failure(std::span<const int> awaited);
  /// The same for who waits for none of the other ranks, but for a device on which they were with this one: who has
  /// left well has done its part.
  std::string failure();
  /// Once every rank has called it the groups can be used. Throws CommError after the deadline.
  void reset(std::chrono::nanoseconds deadline);

 private:
  static std::string prefix(std::int64_t epoch) { return "e" + std::to_string(epoch) + "/"; }
  static std::string poison_key(std::int64_t epoch) { return prefix(epoch) + "poison"; }
  /// Empty if nobody has set it.
  std::string look(const std::string& key);
  static void leave_all(int status, void*);
  void leave() noexcept;

  const int rank_, size_;
  const StoreGroupOptions options_;
  std::atomic<std::int64_t> epoch_ = 0;
  const std::unique_ptr<Store> control_;  // of what concerns all lanes
  std::mutex lanes_mutex_;
  std::array<std::unique_ptr<Store>, HostGroup::kNumLanes> lanes_;
  mutable std::mutex reason_mutex_;
  std::string reason_;
  const int process_, exceptions_at_start_;
};

}  // namespace sherd::comm
