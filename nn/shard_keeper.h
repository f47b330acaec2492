#pragma once
// A keeper holds the shards of parameters while gathered tensors stand in their slots (parallel/shard).
#include <memory>
#include <utility>

#include "nn/module.h"

namespace sherd::nn {

/// Keeps the shards of parameters, and puts gathered tensors into the parameters while their modules compute.
class ShardKeeper {
 public:
  /// The keeper of a parameter; null if there is none: value() is all there is.
  static ShardKeeper* of(const Parameter& parameter) { return parameter.keeper_; }
  /// Puts a shard, which came from attach(), into a parameter that has this keeper from now on.
  void keep(Parameter& parameter, Tensor shard) {
    parameter.keep(std::move(shard));
    parameter.keeper_ = this;
  }
  /// Leaves the parameter without shard and keeper.
  static void release(Parameter& parameter) {
    parameter.keep({});
    parameter.keeper_ = nullptr;
  }

  /// Registers the shards and frees what was gathered. Local; no-op between steps.
  virtual void reshard() = 0;
  /// The same, and nothing that was gathered is used again: on all ranks somebody has written the shards, where they
  /// have any. Local.
  virtual void shards_written() { reshard(); }

  /// Whether they are in memory between steps: false if they have a home elsewhere (runtime/op/copy/offload.h).
  virtual bool keeps_in_memory() const { return true; }

  /// A scope has put full tensors into the slots (shard/summon.h): gathering is an Error.
  bool is_summoned() const { return !summoned.expired(); }
  std::weak_ptr<const void> summoned{};  ///< of the scope, which may outlive parameters and keepers

 protected:
  ~ShardKeeper() = default;
};

}  // namespace sherd::nn
