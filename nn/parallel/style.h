#pragma once
// A style says of one module how tensor parallelism lays it out: how its own parameters are cut, what a plain tensor
// that comes in is, and in which layouts tensors go in and come out. It is data; tensor_parallel.h applies it.
//
//              from            inputs                       outputs
//   plain x  ----------> {..} ----------> {..}  forward  {..} ----------> {..}
//   distributed x --------------^
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/placement.h"

namespace sherd::nn {

/// A placement for each argument of forward(), or for each element of what it returns; where there is none, a tensor
/// passes as it is. Dims count from the end if they are negative. An argument that holds several tensors gives all of
/// them its placement.
class Layouts {
 public:
  /// All pass.
  Layouts() = default;
  Layouts(Placement only) : entries_{only}, is_open_(false) {}  // NOLINT: {.to = Shard(1)}
  Layouts(std::optional<Placement> only) {                      // NOLINT: unset: all pass
    if (only) *this = Layouts(*only);
  }
  /// One entry per argument, in order: their number must be that of the arguments.
  Layouts(std::initializer_list<std::optional<Placement>> entries) : entries_(entries), is_open_(false) {}
  /// Those at some positions, counted from 0; the others pass.
  static Layouts at(std::initializer_list<std::pair<std::size_t, Placement>> entries);

  std::size_t size() const { return entries_.size(); }
  /// Arguments past the entries pass.
  bool is_open() const { return is_open_; }
  std::optional<Placement> operator[](std::size_t i) const { return i < entries_.size() ? entries_[i] : std::nullopt; }

 private:
  std::vector<std::optional<Placement>> entries_;
  bool is_open_ = true;
};

/// What a style says of one module.
struct ModuleLayout {
  struct Cut {
    std::string parameter;
    Placement placement;
    bool is_optional = false;  ///< a module without this parameter is fine: a bias
  };
  std::vector<Cut> parameters{};  ///< of the module's own; all others are whole on every rank
  Layouts from{};                 ///< how a plain tensor that comes in lies on the mesh
  Layouts inputs{};               ///< the layouts that inputs are brought to
  Layouts outputs_from{};         ///< how a plain tensor that comes out lies
  Layouts outputs{};              ///< the layouts that results are brought to
  bool local_outputs = false;     ///< results leave as plain tensors: this rank's part
};

/// A ModuleLayout by kind of module. A module that a style has nothing for is refused.
struct Style {
  std::string name;  ///< in messages
  std::optional<ModuleLayout> linear{}, embedding{};
  std::optional<ModuleLayout> any{};  ///< of every other module, and of those two where they are unset
};

struct ColwiseOptions {
  Placement from = Replicate(), input = Replicate();
  std::optional<Placement> output{};  ///< unset: cut along the last dim
};
/// A Linear computes a part of its output features on each rank: weight and bias Shard(0), output Shard(-1). An
/// Embedding looks up a part of each row: weight Shard(1), output Shard(-1). Forward does not communicate; backward
/// sums the gradient of the input once.
Style colwise(const ColwiseOptions& options = {});

struct RowwiseOptions {
  std::optional<Placement> from{}, input{};  ///< unset: Shard(-1) for a Linear, Replicate for the ids of an Embedding
  Placement output = Replicate();            ///< Replicate is an all-reduce, Shard a reduce-scatter
};
/// A Linear adds up a part of its input features on each rank: weight Shard(1), bias whole. An Embedding holds a part
/// of the vocabulary: weight Shard(0), zeros for ids of other ranks. The ranks' terms are summed on the way out.
Style rowwise(const RowwiseOptions& options = {});

/// Norms, dropout and the like on tensors cut along the sequence: the first argument is brought to Shard(dim), and
/// plain ones are taken for that. Parameters are whole; their gradients are sums over ranks, see partial_gradients.h.
Style sequence_parallel(int dim = 1);

struct PrepareInput {
  Layouts from{}, to{};
};
/// Brings the arguments of forward() to layouts, whatever the module. One that is brought to Replicate and is so
/// already has its gradient summed here, once, however many of the module's parts use it.
Style prepare_input(const PrepareInput& options);

struct PrepareOutput {
  Layouts to{};
  Layouts from{};      ///< of plain results
  bool local = false;  ///< as plain tensors, this rank's part
};
/// The same for what forward() returns.
Style prepare_output(const PrepareOutput& options);

}  // namespace sherd::nn
