#pragma once
// What random rows of modules draw by: a seed, the step, how often each row was called in it, and which elements of the
// whole batch a tensor of this rank is. All of it is this rank's, and the same on all ranks but for the last.
#include <cstdint>
#include <memory>
#include <optional>

#include "nn/init.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/core/host_state.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// The 0-d i64 step that random rows of this rank count with; starts at 0, on the host.
Slot& random_step();
/// The same, moved to `device` for good: rows read it there without an upload.
Slot& random_step(Device device);
/// Begins step `step` for random rows and error messages: once per training step, before its first forward, outside of
/// a captured function (Error there). Counts of calls start again, also where the step is made once more.
/// Does not block.
void set_step(std::int64_t step);
/// Seed of random rows during training on this rank, 0 until it is set; equal on all ranks. Captured steps record again
/// after a change.
void set_seed(Seed seed);

/// A part of a batch: `rows` of `all` rows, from `first` on. The unit is free where all ranks have equally many: rank 1
/// of 4 has {1, 1, 4}.
struct BatchPart {
  std::int64_t first = 0, rows = 1, all = 1;
  friend bool operator==(const BatchPart&, const BatchPart&) = default;
};

/// Says for all modules of this rank which part of the batch it has, in place of the units of fully_shard() around them
/// (batch_part.h): where ranks have unlike numbers of rows, or other rows than those of their mesh (a run that has lost
/// ranks), or where there are no units. Unset: the units say again. On all ranks alike, between steps; captured steps
/// record again after a change. Error unless the rows lie among all.
void set_batch_part(std::optional<BatchPart> part);

/// One of the micro-batches that ranks cut their rows into.
struct MicroBatch {
  std::int64_t number = 0, count = 1;
  /// Its rows are neighbours in the batch of those of the rank's other micro-batches; else of the other ranks' rows in
  /// it.
  bool is_of_rank = true;
  BatchPart of(const BatchPart& rank) const;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

/// What these have set. The part itself is not that of other ranks, whose programs are to be the same.
struct DrawnBy {
  std::uint64_t seed = 0;
  std::optional<BatchPart> part{};
  std::int64_t which_part = 0;  ///< that part by its number, which is the same where it was set before
  MicroBatch micro{};           ///< of that part, or of the units'
  static constexpr AttrField fields[] = {
      attr<&DrawnBy::seed>("seed").seen_by(SeenBy::guard, "each random row"),
      attr<&DrawnBy::which_part>("batch_part").seen_by(SeenBy::guard, "each random row")};
};
/// For those who draw. A step that is being captured notes that it depends on it.
const DrawnBy& drawn_by();

/// The same while it lives, for the part of a step's work that has this number: rows count their calls from where the
/// part 0 began, which comes first. May be within a captured step. The number is the same on all ranks, and says which
/// part, of how many, a rank has.
class BatchPartScope : NoCopy {
 public:
  BatchPartScope(const BatchPart& part, std::int64_t number);
  /// The same for a micro-batch, of whichever part a module's rank has.
  explicit BatchPartScope(const MicroBatch& micro);
  ~BatchPartScope();

 private:
  DrawnBy outer_;
};

/// Whether there are rows on this rank that have drawn: then updates note how often.
struct RowsThatDraw {
  bool any = false;
  static constexpr AttrField fields[] = {attr<&RowsThatDraw::any>("any").seen_by(SeenBy::guard, "each update")};
};
/// For those who are to keep their calls.
const HostState<RowsThatDraw>& rows_that_draw();

/// An optimizer has made an update: where a step that is left goes back to if no set_step() comes before it.
void keep_random_calls();
/// A step was left, on this rank somewhere and on others elsewhere: counts of calls are again those of the last
/// set_step() or update, whichever was later; those of set_step() where ranks have made unlike numbers of updates.
void take_back_random_calls(bool is_update_of_all);

/// How often one random row of a module was called within the step. It counts in a slot, so a captured step draws what
/// the eager one does.
class RandomCalls : NoCopy {
 public:
  /// Takes its place among the counts of this rank, if this thread has a rank; else, or on another one, its first call
  /// does.
  void take_place();
  ~RandomCalls();
  /// 0-d i64 on `device`: what the next call puts into its row's counter, made of the step and the calls before it. On
  /// the meta device nothing is counted.
  Tensor next(Device device);

 private:
  /// Counts of a rank that it has drawn on, and which of them is its own.
  struct Place {
    std::weak_ptr<Slot> counters;
    std::int64_t number;
  };
  std::int64_t place_in(const std::shared_ptr<Slot>& counters);
  std::vector<Place> places_;  // one, unless threads take turns
};

}  // namespace sherd::nn
