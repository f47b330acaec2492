#pragma once
// Which bytes a queue uses at a point of the program. A node whose row hands work to a queue lends it what it reads
// and writes; a wait ends the loans, and with them those of all work that the queue was given before.
//
//   %0 = all_reduce($0)    lends $0 to be read and %0 to be written
//   %1 = add($1, $1)       meanwhile
//   wait(%0)               both loans end
//
// A queue does not touch bytes of another before that has done with them, so what an item follows is over with it.
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "compile/ir/analysis/access.h"

namespace sherd::ir {

class Loans {
 public:
  /// What a call has submitted; some submit several, which read and write the same here.
  struct Item {
    int node;
    std::string_view queue;
    std::vector<ValueId> reads, writes;
    std::vector<int> follows;  ///< items of other queues, which touch its bytes before it does
    int ended_by = -1;         ///< node that waits for it; -1: none so far
    bool is_over() const { return ended_by >= 0; }
  };
  explicit Loans(const Program& program) : program_(program), roots_(program), of_(program.values.size()) {}

  /// The node comes next. A wait ends loans; a call that hands work to a queue begins some, unless it names no bytes.
  /// The items that end.
  std::vector<int> pass(std::size_t node);

  /// The item that writes a value's bytes, which a reader needs over; -1 if there has been none.
  int writer(ValueId value) const { return of(value).writer; }
  /// The items that a writer needs over: the writer, and who reads what that has written.
  std::vector<int> users(ValueId value) const;
  bool is_lent(ValueId value) const;
  const Item& item(int index) const { return items_[static_cast<std::size_t>(index)]; }
  int num_items() const { return static_cast<int>(items_.size()); }
  /// Items of a queue that are not over, the oldest first.
  std::vector<int> open_items(std::string_view queue) const;

  /// What a node needs over before it starts: nothing if its work goes to a queue, which orders it itself.
  std::vector<int> needs(std::size_t node) const;

 private:
  struct Of {
    int writer = -1;
    std::vector<int> readers;  // since that write
  };
  Of& of(ValueId v) { return of_[static_cast<std::size_t>(roots_.root(v))]; }
  const Of& of(ValueId v) const { return of_[static_cast<std::size_t>(roots_.root(v))]; }
  Item item_of(std::size_t node, std::string_view queue) const;
  void begin(std::size_t node, const QueueUse& queue);
  void end(int item, int node, std::vector<int>& ended);

  const Program& program_;
  const ByteRoots roots_;
  std::vector<Item> items_;
  std::vector<Of> of_;                                     // by root
  std::map<std::string_view, std::vector<int>> by_queue_;  // all items
  std::map<std::string_view, std::size_t> first_open_;
};

/// The queue that a node hands its work to, if any.
QueueUse queue_of(const GraphNode& node);

/// Temporaries that a queue uses when the step ends; none where waits are no nodes.
std::vector<ValueId> lent_at_end(const Program& program);

/// Rules of verify() where waits are nodes. Throws Error naming node and value: bytes of a queue are not touched and
/// not freed before a wait.
void check_waits(const Program& program);

}  // namespace sherd::ir
