#include "nn/checkpoint/save/save_parts.h"

#include <utility>

#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/local_box.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"

namespace sherd::ckpt {

std::vector<OwnPiece> own_pieces(const std::vector<nn::StateEntry>& state, int rank) {
  std::vector<OwnPiece> pieces;
  for (const nn::StateEntry& entry : state) {
    check_whole(entry);
    const Tensor& value = state_tensor(entry);
    if (is_usual(entry)) continue;
    if (!saves_box(value, rank)) continue;
    int parts = 0;
    for (const LocalPart& part : local_parts(value, state_shape(entry))) {
      if (numel(part.box) == 0 && value.numel() > 0) continue;  // a tensor without elements is saved all the same
      pieces.push_back(
          {{entry.name, entry.kind, value.dtype(), state_shape(entry), part.box, {}, parts++}, part.values});
    }
  }
  return pieces;
}

std::string agreed_save_name(const std::string& dir, std::int64_t step, ProcessGroup& group) {
  std::string save;
  together(group, [&] {
    if (group.rank() == 0) save = new_save_name(dir, step);
  });
  return gather_text(group, save)[0];
}

void commit_files(const std::string& dir, const std::string& save, Manifest manifest,
                  std::span<const std::string> files, const Retention& retention) {
  manifest.world_size = static_cast<int>(files.size());
  manifest.pieces.clear();
  manifest.blocks.clear();
  for (const std::string& file : files) rank_file_into(manifest, file);
  commit(dir, save, manifest);
  remove_older_saves(dir, save, retention);
}

void check_has_values(const std::string& dir) {
  check(!RankContext::current().is_ghost(),
        "save_checkpoint to \"{}\": this rank is a ghost, whose parameters have no values to save", dir);
}

}  // namespace sherd::ckpt
