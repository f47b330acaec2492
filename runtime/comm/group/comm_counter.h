#pragma once
// What a stretch of the program communicates: every collective that the rank's thread issues while a counter is in
// scope, by kind, by op and by module. Tests and strict programs say with it how much communication there may be.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/collective.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// Counts for a scope on this rank's thread; scopes nest, and outer ones count too. Calls are counted when they are
/// issued, so nothing is waited for, in backward and in replays of captured steps as well. Groups of one rank count
/// nothing, nor do exchanges that are no op (barriers, rendezvous, agreements).
class CommCounter : NoCopy {
 public:
  struct Item {
    std::int64_t calls = 0, bytes = 0;
    friend bool operator==(const Item&, const Item&) = default;
  };
  struct Entry {
    comm::CommOp kind;
    std::string op, cause, module;
    int ranks;
    Item item;
  };

  CommCounter();
  ~CommCounter();

  Item total() const;
  Item of(comm::CommOp kind) const;
  /// Calls of one row, which communicates or needed its inputs elsewhere (CommCause): "unshard", "matmul".
  Item of_op(std::string_view op) const;
  /// Calls of a module and of all modules below it: "blocks.3".
  Item of_module(std::string_view path) const;
  /// All that differ in kind, op, module or number of ranks, in the order of their first call.
  const std::vector<Entry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }
  /// A table of the entries, a line each, and their sum; "no communication" if there are none.
  std::string describe() const;

 private:
  friend class CommCause;
  friend void count_collective(const struct IssuedCollective& issued);
  void add(const struct IssuedCollective& issued, std::string_view cause, std::string_view module);
  template <class Predicate>
  Item sum_if(Predicate&& predicate) const;

  CommCounter*& innermost_;  // of the rank
  CommCounter* const outer_;
  std::string_view cause_;
  std::vector<Entry> entries_;
};

}  // namespace sherd
