#pragma once
// Proves, while a program runs, that every access to memory is ordered after the conflicting ones before it, whatever
// the timing, and that whoever is given memory comes after all who used it as another storage. Vector clocks: the
// rank's thread and each queue know how far they have seen each other; submit, wait and dependencies pass that
// knowledge on. All of it is known when work is submitted, so the check runs on the rank's thread alone and its result
// does not depend on how threads are scheduled.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/memory/event.h"
#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class Storage;
struct Loan;
struct QueueItem;
class Queue;

/// Everything that orders a queue against others.
enum class QueueEdge : std::uint8_t {
  submit,   ///< the rank's thread -> work: it sees what the thread wrote before
  reuse,    ///< the same, for work that is given memory which the thread used as another storage's
  order,    ///< work -> the next work of the same queue
  depend,   ///< work -> work of another queue that uses the same bytes
  touch,    ///< work -> the rank's thread, which reads or writes bytes on loan
  release,  ///< work -> the rank's thread, which frees bytes on loan
  hold,     ///< work keeps what it reads alive (without it, freeing waits; without both, it is a hazard)
};

/// What a test takes away: one edge at one queue (for `depend` the one that is waited for); touch and release
/// also distinguish bytes that the work writes from bytes that it reads.
struct RemovedEdge {
  QueueEdge edge;
  std::string_view queue;
  std::optional<bool> writes{};
};

/// Checks the current rank for a scope. Accesses of the rank's thread are those through Storage::read() and write();
/// those of work are its loans. A missing edge throws Error naming both works, their queues and the storage, or both
/// storages if it is about memory that one has had after the other; where memory is freed, which must not throw, it is
/// only noted.
class HazardChecker final : public AccessWatcher, NoCopy {
 public:
  HazardChecker();
  ~HazardChecker();

  void remove(RemovedEdge edge) { removed_.push_back(edge); }
  bool is_removed(QueueEdge edge, std::string_view queue, std::optional<bool> writes = {}) const;
  /// Messages of all hazards so far.
  const std::vector<std::string>& found() const { return found_; }
  std::int64_t num_checked() const { return num_checked_; }

  void submitted(const Queue& queue, const QueueItem& item, std::span<const Loan> loans);
  void waited(const Queue& queue, std::uint64_t sequence);
  /// Work of the queue no longer looks at what it reads of the storage.
  void let_go(const Queue& queue, const Storage& storage);
  bool looks_before_wait(const Storage& storage, Kind kind) const override;
  void accessed(const Storage& storage, Kind kind) override;
  void released(const Storage& storage) noexcept override;

 private:
  // Index 0 is the rank's thread (time = number of submits before), 1 + k is queue k (time = sequence). What lies
  // behind the end is 0.
  using Clock = std::vector<std::uint64_t>;
  struct Access {
    std::size_t agent;
    std::uint64_t time;
    bool writes;
    std::string who;
  };
  struct Known {
    std::uint64_t sequence;
    Clock clock;
  };
  // A storage in its memory, until that is first used as another's.
  struct Tenant {
    std::uintptr_t end;
    std::uint64_t storage;
    std::string text;  // describe()
    std::vector<Access> accesses;
  };
  static void join(Clock& clock, const Clock& other);
  static void see(Clock& clock, std::size_t agent, std::uint64_t time);
  Clock clock_of(const Queue& queue, std::uint64_t sequence) const;
  static bool is_ordered(const Access& before, const Access& access, const Clock& clock);
  static void note(std::vector<Access>& accesses, const Access& access);
  // What is wrong with an access; empty: nothing, and it is noted. `reuse`: what it knows of who used its memory as
  // another storage's.
  std::string check(const Storage& storage, const Access& access, const Clock& clock, const Clock& reuse);
  std::string find_hazard(const Storage& storage, const Access& access, const Clock& clock);
  std::string find_hazard_of_reuse(const Storage& storage, const Access& access, const Clock& clock);
  std::map<std::uintptr_t, Tenant>::iterator first_tenant(std::uintptr_t first);
  void note_tenant(const Storage& storage, const Access& access);
  Access rank_access(bool writes) const;

  HazardChecker* const outer_;
  Clock rank_{1};
  std::vector<std::deque<Known>> items_;  // by queue: what each item knows, from the last one waited for on
  std::unordered_map<std::uint64_t, std::vector<Access>> accesses_;  // by storage: the last of each agent and kind
  std::map<std::uintptr_t, Tenant> tenants_;                         // by first address; they do not overlap
  std::vector<RemovedEdge> removed_;
  std::vector<std::string> found_;
  std::int64_t num_checked_ = 0;
};

}  // namespace sherd
