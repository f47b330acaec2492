#pragma once
// What takes memory on a rank: which op, of which module, in which part of the step has made each block that is live at
// the moment of the peak. It writes down every change of an allocator's accounts and looks back when somebody asks, so
// a change costs one entry, and nothing at all where nobody asks.
//
//   MemoryLog log(RankContext::current().allocator());
//   train();
//   MemoryLog::Picture peak = log.peak();
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/memory/accounting.h"
#include "runtime/memory/allocator.h"
#include "runtime/tensor/for_scope.h"

namespace sherd {

/// Watches one allocator from construction to destruction, on the rank's thread; one per rank at a time.
class MemoryLog final : public AllocationWatcher, NoCopy {
 public:
  /// Where the program stands.
  struct Moment {
    std::string module{};  ///< path; empty outside of modules
    std::string op{};      ///< row of the op table; empty outside of ops
    StepPhase phase = StepPhase::forward;
    std::int64_t step = -1;  ///< RankContext::step
  };

  struct Block {
    std::int64_t bytes = 0;
    MemoryCategory category = MemoryCategory::activations;
    std::string name{};         ///< of its storage on this rank, "blocks.3 full"; empty: it has none
    Moment made{};              ///< where it was taken
    std::uint64_t storage = 0;  ///< number of its storage; 0: not a storage's
  };

  /// What is held at one moment.
  struct Picture {
    Moment moment{};
    CategoryBytes bytes{};
    std::int64_t total = 0;
    std::vector<Block> blocks{};  ///< largest first; not those that were there before the log
  };

  /// Bytes that an allocator has refused, and what was held.
  struct Refusal {
    std::int64_t bytes = 0;
    MemoryCategory category = MemoryCategory::activations;
    Picture held{};
  };
  /// Adds names to the blocks of a picture: asked when a picture is made, while what it shows may be alive.
  using Namer = std::function<void(Picture& picture)>;

  explicit MemoryLog(Allocator& allocator, Namer namer = {});
  ~MemoryLog();

  /// The moment at which most was held, the first of several.
  Picture peak() const { return picture_of(peak_); }
  /// The moment at which most activations were held as a backward pass began: what forward has left to it. Empty if
  /// none has begun.
  Picture before_backward() const { return picture_of(saved_); }
  /// The last refusal, if there was one.
  const std::optional<Refusal>& refusal() const { return refusal_; }

  /// The op that runs; see op/dispatch.cpp.
  class OpScope {
   public:
    OpScope(MemoryLog* log, std::string_view op) : scope_(log ? &log->op_ : nullptr, op) {}

   private:
    const ForScope<std::string_view> scope_;
  };

 private:
  enum class Kind : std::uint8_t { taken, given_back, retagged, charged };
  // Strings are rows' and the rank context's, which outlive the log.
  struct Place {
    const std::string* module = nullptr;
    std::string_view op;
    std::int64_t step = -1;
    StepPhase phase = StepPhase::forward;
  };
  struct Change {
    const void* block = nullptr;
    std::int64_t bytes = 0;
    std::uint64_t storage = 0;
    const std::string* name = nullptr;
    Place place{};
    Kind kind = Kind::taken;
    MemoryCategory category{}, to{};
  };
  using Blocks = std::unordered_map<const void*, Change>;
  struct State {
    CategoryBytes bytes{};
    Blocks blocks;
    void apply(const Change& change);
  };
  // A moment to look back at: after the first `position` changes, or kept from before those.
  struct Mark {
    std::int64_t score = std::numeric_limits<std::int64_t>::min();
    std::size_t position = 0;
    bool is_kept = true;
    Place place;
    State kept;
  };
  static constexpr std::size_t kMostChanges = std::size_t{1} << 15;

  void taken(const void* block, std::int64_t bytes, MemoryCategory category) noexcept override;
  void given_back(const void* block, std::int64_t bytes, MemoryCategory category) noexcept override;
  void retagged(const void* block, std::int64_t bytes, MemoryCategory from, MemoryCategory to) noexcept override;
  void is_of(const void* block, const StorageMemory& storage) noexcept override;
  void refused(std::int64_t bytes, MemoryCategory category) noexcept override;

  Place here() const;
  void note_phase();
  void push(Change change);
  void mark(Mark& mark, std::int64_t score);
  void fold();
  State state_at(std::size_t position) const;
  Picture picture_of(const Mark& mark) const;
  Picture picture_of(const State& state, const Place& place) const;

  Allocator& allocator_;
  RankContext& context_;
  const Namer namer_;
  std::string_view op_;
  StepPhase phase_ = StepPhase::forward;
  State before_;                  // of the first change that is kept
  std::vector<Change> changes_;   // since then
  std::int64_t activations_ = 0;  // after them
  Mark peak_, saved_;
  std::optional<Refusal> refusal_;
};

/// "op matmul, module blocks.3.mlp, backward, step 4", without what is not known; steps are counted from 1.
std::string describe(const MemoryLog::Moment& moment);

}  // namespace sherd
