#pragma once
// The newest save of a folder that is good on all ranks: damage in one costs the steps since the save before it.
#include <functional>
#include <memory>
#include <string>

#include "nn/checkpoint/load/checkpoint_reader.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::ckpt {

/// What is done with a save that all ranks have opened. If it communicates, as load_checkpoint() may, a rank that fails
/// must not leave its peers waiting. DamagedSave from it means that an older save may do.
using SaveUse = std::function<void(const CheckpointReader& save)>;
/// Told on rank 0, in one sentence, which saves were passed over and why.
using SayWhy = std::function<void(const std::string&)>;

/// Opens the saves at `path`, a folder of saves or one save, the newest first, until one of them is opened and used by
/// all ranks; returns that one. Those that are damaged, on any rank, are passed over by all. `opened`, if there is one,
/// stands for the save of its folder, and newer ones are not looked at. Collective. Throws Error, on every rank: if no
/// save is good, with the reasons; what `use` throws beside DamagedSave; NewerVersion, since what a newer program has
/// saved is not to be passed over, and then removed.
std::unique_ptr<CheckpointReader> use_newest_good(const std::string& path, ProcessGroup& group, const SaveUse& use,
                                                  const SayWhy& say, std::unique_ptr<CheckpointReader> opened = {});

/// What is checked when a save is opened: its manifest and that its files are there in full, or every byte of them too.
enum class Verify { files, bytes };

/// The newest good save, without a use. With Verify::bytes the ranks read all of it once together, each its share.
std::unique_ptr<CheckpointReader> open_newest_good(const std::string& path, ProcessGroup& group, Verify verify,
                                                   const SayWhy& say);

}  // namespace sherd::ckpt
