#pragma once
// What a rank shares with the things made on it: how often something has changed that guards of recordings read, and
// which of the things live. A thing may change, or end, on another thread and after its rank's scope, so it holds the
// register of the rank that has made it, and counts there.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class RankRegister {
 public:
  explicit RankRegister(const RankMemory* rank) : rank_(rank) {}
  /// How often things of this rank have changed. Whatever lets another thread see a change lets it see the count.
  std::uint64_t changes() const {
    return by_rank_.load(std::memory_order_relaxed) + by_others_.load(std::memory_order_relaxed);
  }
  void note_change() {
    if (RankMemory::current_or_null() != rank_) by_others_.fetch_add(1, std::memory_order_relaxed);
    else by_rank_.store(by_rank_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

 private:
  friend class RegisteredThing;
  const RankMemory* const rank_;                          // may be gone
  std::atomic<std::uint64_t> by_rank_{0}, by_others_{0};  // apart: only its own thread counts the first, unlocked
  std::mutex mutex_;
  std::vector<std::list<void*>> living_;  // by kind, in the order in which they were made
};

/// The place of a thing in the register of its rank, without its type.
class RegisteredThing : NoCopy {
 public:
  /// The register of the rank that has made the thing.
  const std::shared_ptr<RankRegister>& home() const { return home_; }
  /// Something has changed that guards read.
  void note_change() const { home_->note_change(); }

 protected:
  RegisteredThing(std::size_t kind, void* thing);
  ~RegisteredThing();
  static std::size_t next_kind();
  static std::vector<void*> living(std::size_t kind, RankRegister* of);

 private:
  const std::shared_ptr<RankRegister> home_;
  const std::size_t kind_;
  std::list<void*>::iterator place_;
};

/// A member of a T, which its rank knows while it lives. One T belongs to one library.
template <class T>
class Registered final : public RegisteredThing {
 public:
  explicit Registered(T* thing) : RegisteredThing(kind(), thing) {}
  /// Lists what a rank has made and what lives, in the order of making; null: this rank.
  static std::vector<T*> living(RankRegister* of = nullptr) {
    std::vector<T*> result;
    for (void* thing : RegisteredThing::living(kind(), of)) result.push_back(static_cast<T*>(thing));
    return result;
  }

 private:
  static std::size_t kind() {
    static const std::size_t index = next_kind();
    return index;
  }
};

}  // namespace sherd
