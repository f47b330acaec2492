#pragma once
// From the recorded program to the one that runs: a list of passes, each of which is proved when it has run.
//
//   recorded -> verify -> ssa -> verify, meaning -> ... -> place_waits -> verify, meaning -> an executor
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compile/ir/footprint.h"
#include "compile/ir/program.h"

namespace sherd::ir {

struct PassContext;

/// Properties of a program that passes give it, need, and end, as bits.
using Forms = std::uint8_t;
namespace form {
inline constexpr Forms split = 1;   ///< by ssa: what is written whole is a value of its own
inline constexpr Forms placed = 2;  ///< by place_eager: what was recorded in one storage is in one
inline constexpr Forms waits = 4;   ///< by place_waits: waits for queues are nodes
}  // namespace form

struct Pass {
  std::string name;  ///< for errors
  /// Leaves a program that verify() accepts, that means what it did, whose tables of names are as they were, and whose
  /// collectives come in the order in which they did; gathers may be fewer or more.
  std::function<void(Program&, PassContext&)> run;
  Forms needs = 0, gives = 0, ends = 0;
};

/// Where bytes of the program's device may be meanwhile, a file or memory of the host, and seconds that a byte takes.
struct Elsewhere {
  /// On the queue of copies, and of the thread's own that the queue takes.
  struct Way {
    double queued = 1e-9, own = 0;
  };
  Way out{}, back{};
  std::int64_t least_bytes = 4096;  ///< smaller values are not worth a call
};

/// What passes decide by, and what they say. Without it they leave what was recorded.
struct PassContext {
  /// Whether the program may become another than the recorded one. Recordings are compared as they were made.
  bool may_improve = false;
  /// Bytes that the rank may hold at most while the program runs; none: as many as it was recorded to hold.
  std::optional<std::int64_t> budget{};
  std::int64_t beside = 0;  ///< of these, what is not the program's
  /// Finds it for a program as the last pass leaves it; unset: it is unknown, and nothing is decided by it.
  std::function<Footprint(const Program&)> footprint{};
  /// Seconds of each node. Unset: they cost nothing.
  std::function<std::vector<double>(const Program&)> seconds{};
  std::optional<Elsewhere> elsewhere{};  ///< none: all bytes stay in memory
  /// By item: whether it is true on all ranks, which call it together and equally often. Unset: this rank decides
  /// nothing that the others must do too.
  std::function<std::vector<bool>(const std::vector<bool>&)> on_all{};
  /// Sees the program before the passes, as "recorded", and as each of them has left it, by the name of the pass.
  std::function<void(std::string_view name, const Program& program)> observe{};
  std::span<const Pass> later{};     ///< the passes that come after this one
  std::vector<std::string> notes{};  ///< a line of each pass that has decided something

  /// Runs the later passes, which decide nothing.
  void finish(Program& program) const;
  /// What a program of now will hold, once they have run.
  Footprint outcome(Program program) const;
};

/// What compile() runs unless it is told otherwise: ssa and place_eager, between which passes that move, merge or
/// replace nodes have their place; then sums that rows cannot add up, scratch and waits become nodes and values.
/// Results are those of the recorded run, bit for bit; so is memory, byte for byte, unless the context lets passes
/// improve it.
std::vector<Pass> standard_passes();

/// The same without those that `text` takes out, as "-budget,-dead_nodes"; "" takes out none. Error for a name that is
/// none, with the nearest, and for a pass that is left and needs one that is not.
std::vector<Pass> passes_named(std::string_view text);

/// Runs the passes one after the other. Error naming the pass, and the node where there is one, if the program lacks
/// what the pass needs, or if what it leaves is not sound (verify.h), does not mean what the recorded one does
/// (meaning.h), calls collectives in another order, or has other tables of names, by which a rank knows what they stand
/// for. A pass that leaves the recorded program, as it was or again, leaves nothing to prove. Without passes it is
/// verify(). A failed call leaves the program as the pass left it.
void run_passes(Program& program, std::span<const Pass> passes, PassContext& context);
void run_passes(Program& program, std::span<const Pass> passes);

}  // namespace sherd::ir
