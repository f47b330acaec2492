#pragma once
// A style is the tensor parallelism of one module: placements of its own parameters, placements of plain inputs, and
// the layouts to redistribute inputs and outputs to. It is data; tensor_parallel.h applies it.
//
//              from            inputs                       outputs
//   plain x  ----------> {..} ----------> {..}  forward  {..} ----------> {..}
//   distributed x --------------^
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/placement.h"

namespace sherd::nn {

/// A layout per kind of module: a layer with input features is linear, one with a vocabulary an embedding, by what it
/// says of itself (nn/shardable.h). Applying it to a module of another kind is an Error.
struct Style {
  /// A placement for each argument of forward(), or for each of its results; a tensor without one passes unchanged.
  /// Negative dims count from the end. All tensors within one argument get its placement.
  class Layouts {
   public:
    /// All pass unchanged.
    Layouts() = default;
    Layouts(Placement only) : entries_{only}, is_open_(false) {}  // NOLINT: {.to = Shard(1)}
    Layouts(std::optional<Placement> only) {                      // NOLINT: unset: all pass
      if (only) *this = Layouts(*only);
    }
    /// One entry per argument, in order: their number must be that of the arguments.
    Layouts(std::initializer_list<std::optional<Placement>> entries) : entries_(entries), is_open_(false) {}
    /// Placements at some positions, counted from 0; the other arguments pass.
    static Layouts at(std::initializer_list<std::pair<std::size_t, Placement>> entries);

    std::size_t size() const { return entries_.size(); }
    /// Arguments past the entries pass.
    bool is_open() const { return is_open_; }
    std::optional<Placement> operator[](std::size_t i) const {
      return i < entries_.size() ? entries_[i] : std::nullopt;
    }

   private:
    std::vector<std::optional<Placement>> entries_;
    bool is_open_ = true;
  };
  struct Layout {
    /// Which of a layer's roles (nn/shardable.h) is sharded, beside the parameters named below.
    enum class Side : std::uint8_t { none, out, in, vocabulary };
    struct Cut {
      std::string parameter;
      Placement placement;
      bool is_optional = false;  ///< a module without this parameter is fine: a bias
    };
    Side side = Side::none;
    std::vector<Cut> parameters{};  ///< the module's own; all others are replicated
    Layouts from{};                 ///< placements of plain inputs
    Layouts inputs{};               ///< layouts to redistribute inputs to
    Layouts outputs_from{};         ///< placements of plain results
    Layouts outputs{};              ///< layouts to redistribute results to
    bool local_outputs = false;     ///< return local tensors
  };
  /// Placements around one layer; what is unset is as its style says.
  struct Around {
    std::optional<Placement> from{};    ///< of a plain input
    std::optional<Placement> input{};   ///< that the input is redistributed to
    std::optional<Placement> output{};  ///< that the result is redistributed to
  };
  struct Input {
    Layouts from{}, to{};
  };
  struct Output {
    Layouts to{};
    Layouts from{};      ///< of plain results
    bool local = false;  ///< return local tensors
  };

  std::string name;  ///< in messages
  std::optional<Layout> linear{}, embedding{};
  std::optional<Layout> any{};  ///< of every other module, and of those two where they are unset
};

/// Output features sharded: of a Linear weight and bias Shard(0), of an Embedding weight Shard(1). `from` and `input`
/// are Replicate, `output` as computed, Shard(-1). Forward does not communicate; backward reduces the gradient of the
/// input once.
Style colwise(const Style::Around& placements = {});
/// Input features of a linear layer sharded, in Linear weight Shard(1), bias replicated; or the vocabulary of an
/// embedding, in Embedding weight Shard(0), zeros for ids of other ranks. `from` and `input` are Shard(-1) for a
/// Linear, Replicate for the ids of an Embedding. The result is Partial and is reduced to `output`: Replicate, an
/// all-reduce; Shard is a reduce-scatter.
Style rowwise(const Style::Around& placements = {});

/// Norms, dropout and the like on tensors sharded along the sequence: the first argument is redistributed to
/// Shard(dim); a plain one counts as Shard(dim). Parameters are replicated; their gradients are Partial, see
/// partial_gradients.h.
Style sequence_parallel(int dim = 1);

/// Redistributes the arguments of forward(), for any kind of module. The gradient of an argument that is to be
/// replicated and is so already is reduced here once, however many submodules use it.
Style prepare_input(const Style::Input& options);
/// The same for the results of forward().
Style prepare_output(const Style::Output& options);

}  // namespace sherd::nn
