#pragma once
// Saving and loading a model and its optimizer: every rank writes the boxes it owns, rank 0 commits the manifest.
#include <string>
#include <vector>

#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "nn/checkpoint/load/newest_good.h"
#include "nn/module.h"
#include "nn/optim/loss_scaler.h"
#include "nn/optim/optimizer.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::nn {

/// One slot of a checkpoint: {"blocks.0.attn.wq.weight", "param"} or {.., "optim.m"}.
struct StateEntry {
  std::string name, kind;
  Slot* slot;
  Parameter* parameter = nullptr;   ///< marked initialised when its values are loaded
  const Parameter* like = nullptr;  ///< its shape is that of this parameter, where it has as many elements
  /// The default where the checkpoint has no entry: `slot` is saved only if it does not share this slot's bytes.
  Slot* usually = nullptr;
};

/// The shards hold the state, also while a unit of fully_shard is gathered.
const Tensor& state_tensor(const StateEntry& entry);
/// In which the tensor is saved: the parameter's, also where shards are of one with merged dims (shard_merged).
const Shape& state_shape(const StateEntry& entry);
/// Error naming the entry if a step was left while it changed the value.
void check_whole(const StateEntry& entry);
/// Marks the entry's new values as whole and drops what is gathered of the old ones.
void mark_loaded(const StateEntry& entry);
/// Whether the entry is its default: it shares that one's bytes, and is not saved.
bool is_usual(const StateEntry& entry);

/// Parameters, buffers and, with an optimizer, its state and step count, with a scaler its scale and counts. Reshards
/// the units of fully_shard first, so that the slots hold shards. The entries stay current; saving and loading mean the
/// shards, gathered or not.
std::vector<StateEntry> training_state(Module& model, Optimizer* optimizer = nullptr, LossScaler* scaler = nullptr);

/// Writes a save into the folder `dir` and commits it; `manifest` has everything but the pieces. Shards are written by
/// their owners, one of their replicas, plain tensors by rank 0; tensors on a device, or not dense, are copied one by
/// one. Older saves are removed by `retention`. Collective; blocks on the disk. On any failure (disk full, a directory
/// that cannot be written) every rank throws Error and the older saves stay. Error on a ghost rank, which has no
/// values, and on every rank if a step was left half done and nothing was loaded since.
void save_checkpoint(const std::string& dir, ckpt::Manifest manifest, const std::vector<StateEntry>& state,
                     ProcessGroup& group, const ckpt::Retention& retention = {});

/// Error, of CheckpointReader::require_exactly(), unless the save has all of `state`, and nothing else.
void require_exactly(const ckpt::CheckpointReader& save, const std::vector<StateEntry>& state);

/// Fills the slots with the checkpoint's values, each rank its own shards; any number of ranks, in any layouts, may
/// have written it. Reads and checks no other bytes than those in the blocks of these shards (read_box). Columns of a
/// matrix that was saved in others are the exception: ranks read rows, each byte one of them, and exchange them over
/// the mesh of the tensor (read_layout.h). So this is collective where tensors are sharded along another dim than the
/// first: call it on all ranks, with equal state; one that fails takes part in the exchanges before it throws, and then
/// all throw that have exchanged with it, so together() may hold it. The model must have memory (Module::allocate, or
/// materialize); units that are gathered are resharded. Missing tensors and other shapes are Errors, damaged bytes
/// DamagedSave: slots that have new values then are torn, until a load that succeeds. Further tensors in the checkpoint
/// are none (CheckpointReader::require_exactly checks that). On a ghost rank names, dtypes and shapes are checked and
/// the memory of loading is accounted; no bytes are read but the counts of steps, whose values say which slots share
/// one, so bytes that are damaged go unnoticed.
void load_checkpoint(const ckpt::CheckpointReader& reader, const std::vector<StateEntry>& state);

}  // namespace sherd::nn
