#pragma once
// The full state of a sharded model, handed out and taken in by rank 0 tensor by tensor, so that no rank holds more
// than its shards, one tensor and a chunk in transit.
//
//   get    who owns a piece --send, in chunks--> rank 0: a full tensor, visited, then freed
//   set    rank 0: a full tensor --broadcast, in chunks--> every rank keeps what its shard holds
//
// Tensors have the names of a checkpoint's files: "w", "buffer/seen", "optim.m/w", "optim/step".
#include <functional>
#include <map>
#include <string>

#include "nn/checkpoint/training_state.h"

namespace sherd::nn {

/// Full tensors on the host by name.
using FullState = std::map<std::string, Tensor>;
/// Called on rank 0, in the order of the state; keeps the tensor or lets it go.
using FullTensorVisitor = std::function<void(const std::string& name, Tensor full)>;
/// Called on rank 0: the full tensor of that name.
using MakesFullTensor = std::function<Tensor(const std::string& name)>;

struct FullStateOptions {
  /// Loading demands the state's names. Else what is missing keeps its values, and what the state lacks is ignored.
  bool strict = true;
  /// Most that is in transit to, or from, a rank.
  std::int64_t chunk_bytes = 4 << 20;
};

/// Calls `visit` on rank 0 with one full tensor of `state` after the other, plain and on the host, with the bits that
/// the shards have; of replicas one is asked. Other ranks only send. Collective over `group`, which all ranks of the
/// model's meshes are in, numbered as there; blocks. An entry that shares the bytes of its default (a count of steps
/// like the optimizer's) is left out, as in a checkpoint. Throws Error on every rank: parameters without memory or
/// Partial, ranks with other states, what `visit` throws. Error on a ghost rank, which has no values.
void visit_full_state(const std::vector<StateEntry>& state, ProcessGroup& group, const FullTensorVisitor& visit,
                      const FullStateOptions& options = {});

/// All of training_state(model, optimizer) on rank 0, which then holds it; empty on the others. Reshards the model.
FullState full_state_dict(Module& model, ProcessGroup& group, Optimizer* optimizer = nullptr,
                          const FullStateOptions& options = {});

/// Fills `state` from tensors that rank 0 makes one after the other; each rank keeps its own shards, bit for bit.
/// `tensors` says which there are by dtype and shape, on any device, meta too; `value` makes one when its turn comes,
/// in the order of the state, on any device but meta, of scalars once more before. Other ranks give nothing: neither is
/// looked at there. Collective as visit_full_state(); blocks. The model must be materialised. Before anything is
/// written every rank compares all names, dtypes and shapes, and throws Error that lists what is missing, what the
/// state does not have, and what is of another dtype or shape; and ranks whose states have what is loaded in another
/// order, or other parts of it. What `value` throws ends the call on every rank, as any failure does: tensors of
/// earlier names have new values and are torn then, until a load that succeeds.
void load_full_state(const std::vector<StateEntry>& state, ProcessGroup& group, const FullState& tensors,
                     const MakesFullTensor& value, const FullStateOptions& options = {});

/// The same of tensors that rank 0 holds, into training_state(model, optimizer); reshards the model. Other ranks pass
/// an empty map. One that is undefined, distributed or on meta is named before anything is written.
void load_full_state_dict(Module& model, ProcessGroup& group, const FullState& full, Optimizer* optimizer = nullptr,
                          const FullStateOptions& options = {});

}  // namespace sherd::nn
