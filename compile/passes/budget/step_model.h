#pragma once
// A program as a budget sees it: what is held from which node to which, and what it costs to let go of it in between.
// A gap is a stretch between two uses of a value. A value that is gone over a gap is brought back: a temporary by
// running its node again, with those inputs that are gone too; gathered parameters by a gather as it was recorded.
//
//   forward   %1 = norm(%0)   %2 = linear(%1)   %3 = gelu(%2)   ..        a recorded step lets go of %1 between the
//   two, backward  .. gelu_backward(%g, %2)   %1' = norm(%0)   linear_weight_grad(%g, %1')   and runs the norm again
//
// Nodes that mean the same are one here, so what was recorded is a choice like any other: it repeats what is gone.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compile/ir/program.h"
#include "compile/passes/pass.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::ir {

/// What becomes of a value over a gap between two of its uses.
enum class Over : std::uint8_t {
  held,  ///< it stays
  gone,  ///< let go after the earlier use, and back for the later one, or sooner if another value needs it to come back
  brief,  ///< the same; but what came back for another goes again, and comes back once more for the use
  away,   ///< copied to a home after the earlier use, and from there before the later one, beside nodes that compute
  apart,  ///< the same, and the rank waits for each copy
};
constexpr bool is_copied(Over over) { return over == Over::away || over == Over::apart; }

/// By gap.
using Choice = std::vector<Over>;

/// Indices are of nodes, gaps and what is held; -1 says none.
constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

class StepWalk;

class StepModel : NoCopy {
 public:
  struct Gap {
    int held = -1;              ///< what is held: an index of the model's
    int use = -1;               ///< the use of it that ends the gap
    int first = -1, last = -1;  ///< the recorded nodes of the two uses
    int node = -1;              ///< that makes it, and would again
    std::int64_t bytes = 0;
    bool is_unit = false;  ///< of gathered parameters, from a release to the gather after it
    /// Parameters that were recorded to stay would be released after `first`, and gathered before `last`, as these
    /// nodes are; or before `late`, where the unit itself begins to be used.
    int release = -1, gather = -1, late = -1;
    /// A temporary may come back as its node runs again; as a copy, which beside other nodes ends after `out_by` and
    /// begins before `back_from`.
    bool can_repeat = false, can_leave = false;
    int out_by = -1, back_from = -1;
    int kind = 0;  ///< equal for gaps of equal values in equal blocks
  };
  /// What a choice costs and holds.
  struct Load {
    double seconds = 0;     ///< of all nodes; infinite if something cannot be brought back where it is needed
    double moved = 0;       ///< bytes that all nodes read and write, which no price changes
    std::int64_t peak = 0;  ///< of temporaries, scratch and gathered parameters
    double excess = 0;      ///< bytes over the limit that was given, summed over the nodes
    // If asked for:
    std::vector<int> at_peak{};        ///< gaps over which something is held at the peak that is not used there
    std::vector<std::int64_t> held{};  ///< at each node that runs
  };

  /// `seconds`: by node. The program is as ssa() leaves it, and outlives the model.
  StepModel(const Program& program, std::vector<double> seconds, std::optional<Elsewhere> elsewhere = {});

  const std::vector<Gap>& gaps() const { return gaps_; }
  /// What the program does.
  const Choice& recorded() const { return recorded_; }
  int num_kinds() const { return num_kinds_; }

  /// What a replay of what was recorded holds at each node: what it holds beside what is known here, as bytes of
  /// queues, is held from now on.
  void learn(std::span<const std::int64_t> held);

  Load weigh(const Choice& choice, std::int64_t limit = std::numeric_limits<std::int64_t>::max(),
             bool is_asked = false) const;
  /// The program that does as chosen: nodes repeated or left out, numbers and frees of before; see settle().
  Program apply(const Choice& choice) const;

 private:
  friend class StepWalk;
  struct Held {
    std::int64_t bytes = 0;
    int node = -1, output = -1;  // that makes it
    std::vector<int> uses{};     // nodes in order; the number of nodes: the end of the step
    std::vector<int> makers{};   // recorded nodes that make it, the first one too
    int first_gap = -1;          // of use 1; one for each use after
    bool can_repeat = false;
    int writers = 0;  // nodes that write it, those that repeat the first left out
    MemoryCategory category{};
  };
  /// What a node needs besides temporaries.
  struct Outside {
    ValueId value;
    int writes;  // that the node has found
  };
  struct Work {
    double seconds = 0, moved = 0;
    std::int64_t scratch = 0;
    std::vector<int> reads, makes;  // held; of outputs -1: no temporary that begins here
    std::vector<int> donors;        // of reads, whose bytes output 0 may take
    std::vector<Outside> outside;
    std::vector<ValueId> writes;  // values that are no temporaries, and are written; units that a gather renews
    int opens = -1, closes = -1;  // the unit gap that begins with this release, ends with this gather
    std::vector<int> releases_after, gathers_before, gathers_late;  // gaps of units that were recorded to stay
    std::vector<int> outs_until, backs_from;  // gaps whose copies end after this node, begin before it
    int first = -1;                           // the node that does the same; this one if there is none before
    bool can_repeat = false;
  };

  /// What a walk reads of each node, beside each other in memory. A row's lists begin where it says, in those of all
  /// rows, and end where the next one's begin.
  struct Row {
    double seconds = 0, moved = 0;
    std::int64_t scratch = 0;
    int first = -1, reads = 0, makes = 0, donors = 0, outside = 0, writes = 0;
    bool is_plain = false;  // no unit and no copy comes or goes with it
  };
  struct Rows {
    std::vector<Row> all;  // one more than nodes
    std::vector<int> all_reads, all_makes, all_donors, all_writes;
    std::vector<Outside> all_outside;
    const Row& operator[](int node) const { return all[at(node)]; }
    std::span<const int> reads(int node) const { return list(node, all_reads, &Row::reads); }
    std::span<const int> makes(int node) const { return list(node, all_makes, &Row::makes); }
    std::span<const int> donors(int node) const { return list(node, all_donors, &Row::donors); }
    std::span<const int> writes(int node) const { return list(node, all_writes, &Row::writes); }
    std::span<const Outside> outside(int node) const { return list(node, all_outside, &Row::outside); }

   private:
    template <class T>
    std::span<const T> list(int node, const std::vector<T>& items, int Row::* first) const {
      const Row* const row = &all[at(node)];
      return {items.data() + row->*first, items.data() + row[1].*first};
    }
  };
  /// The same of what is held.
  struct HeldRow {
    std::int64_t bytes = 0;
    int node = -1, first_gap = -1, uses = 0, num_uses = 0;
    bool can_repeat = false, has_one_writer = false;
  };

  void lay_out();
  void find_temporaries();
  int twin_before(std::size_t node, std::vector<int>& others) const;
  void find_work();
  void find_reads(int node);
  void find_writes();
  bool begins_in(int node, ValueId value) const;
  void find_gaps();
  bool can_leave(const Held& held) const;
  void find_copies();
  void find_unit_gaps();
  void find_kept_units();
  void name_kinds();

  const Program& program_;
  const std::vector<double> seconds_;
  const std::optional<Elsewhere> elsewhere_;
  std::vector<int> held_of_;  // by value; -1: no temporary
  std::vector<Held> held_;
  std::vector<Work> work_;
  std::vector<std::int64_t> beside_;  // by node
  std::vector<Gap> gaps_;
  Choice recorded_;
  int num_kinds_ = 0;
  Rows rows_;
  std::vector<HeldRow> held_rows_;          // by held
  std::vector<int> uses_;                   // of all that is held
  std::int64_t bytes_at_first_ = 0;         // of units
  mutable std::shared_ptr<StepWalk> walk_;  // of the last weighing, for its memory
};

}  // namespace sherd::ir
