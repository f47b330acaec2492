#pragma once
// What `sherd ckpt show` says of a save.
#include <cstdint>
#include <string>

#include "nn/checkpoint/load/checkpoint_reader.h"

namespace sherd {

/// A page for people: run, ranks, model, training, sizes, and the parameters with blocks counted together.
std::string save_page(const ckpt::CheckpointReader& save);
/// All that the manifest holds but for the places of the pieces: every tensor, the config, the state. Ends with a
/// newline.
std::string save_json(const ckpt::CheckpointReader& save);

/// Seconds since the save in `folder` was committed; 0 if that cannot be found out.
std::int64_t age_of_save(const std::string& folder);
/// "90 s", "5 min", "3 h", "4 days".
std::string age_text(std::int64_t seconds);

}  // namespace sherd
