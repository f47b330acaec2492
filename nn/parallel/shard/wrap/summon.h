#pragma once
// The full parameters of a wrapped model, to look at or to change by hand (FSDP1's summon_full_params):
//
//   {
//     const FullParameters full(model, {.write_back = true});
//     fill_into(model.head.weight.value().detach(), 0);   // plain, whole, in the parameter's own dtype, on every rank
//   }                                                     // this rank's part is in its shard again
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// While it lives, value() of every parameter below `module` that a unit of fully_shard has is a plain full tensor, of
/// all axes, replicas and tensor parallelism included: memory of its own, in the parameter's dtype whatever the policy.
/// Optimizers and checkpoints go on to see the shards.
///
/// The constructor is collective over the meshes of the parameters, those of tensor parallelism included, and no others
/// of their root: one stage of a pipeline may summon alone. It blocks, and takes memory for all parameters on every
/// rank, and for one more while it gathers; the end is local. With write_back all ranks must write the same values, or
/// replicas differ after. Nothing is written back where an exception ends the scope.
///
/// Errors: parameters without values, a scope around this one that has some of them, a forward or backward pass or the
/// recording of a step that runs; memory that a rank lacks. Whichever rank meets these, all of these meshes get the
/// error, before anything is gathered, and may go on. Units that ranks have not made alike (unit_agreement.h), and what
/// fails later, on any rank, end the communication of the whole root mesh until reset_after_error(model).
/// While it lives, a forward or unshard() of these units is an Error; at the end, with write_back, a shard that was
/// written in between (by an optimizer or a load), or another tensor in the slot. Of modules that were destroyed in
/// between nothing is written back.
class FullParameters : NoCopy {
 public:
  struct Options {
    bool recurse = true;      ///< the units of modules below too; off: of parameters the module itself names
    bool write_back = false;  ///< put what the tensors hold at the end into the shards; else writes are lost
  };
  explicit FullParameters(Module& module) : FullParameters(module, Options()) {}
  FullParameters(Module& module, const Options& options);
  /// close(), where that was not called.
  ~FullParameters() noexcept(false);

  /// Ends it: writes back if asked to, and value() is the shard again. No-op the second time.
  void close();

 private:
  struct SummonedUnit;
  struct Held {
    NodeRef leaf;  // of the parameter: knows whether that still exists
    Tensor full;
    std::shared_ptr<const SummonedUnit> unit;  // its keeper knows it, and so do other scopes that have some of it
    Parameter* parameter() const;              // null once it or its unit was destroyed
  };
  static std::vector<Held> gather(const std::vector<Parameter*>& parameters);
  std::string obstacle() const;
  void release() const;
  void write_back() const;

  std::vector<Held> held_;
  bool writes_;
  int exceptions_;  // in flight when it began
};

}  // namespace sherd::nn
