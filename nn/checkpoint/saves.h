#pragma once
// The saves that a folder holds. Each is complete in a folder of its own, and counts from the moment it has a manifest:
//
//   DIR/step-000200/manifest.json   rank-00000.safetensors   rank-00001.safetensors
//   DIR/step-000100/...
//   DIR/lock                                                 while a run saves there (folder_lock.h)
#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// A committed save.
struct SavePlace {
  std::string folder;     ///< where its files lie
  std::int64_t step = 0;  ///< by the folder's name
};

/// The committed saves at `path`, newest first, by name alone: what is in them may be damaged. `path` is a folder of
/// saves, or one save. Empty if there is none. Programs before version 3 of the format kept one save, whose manifest
/// lies in DIR itself: it counts as older than the others. Throws Error if the folder cannot be read.
std::vector<SavePlace> list_saves(const std::string& path);

/// The folder of the first of them. Error naming `path` if there is none.
std::string newest_save(const std::string& path);

/// The folder in `dir` for a new save at `step`; no committed save has it.
std::string new_save_name(const std::string& dir, std::int64_t step);

/// Which of the older saves stay when a new one is committed.
struct Retention {
  int keep = 3;          ///< saves in all, the new one included; at least 1
  bool replace = false;  ///< none of the older ones
};

/// Removes from `dir` what `retention` does not keep beside the save `name`, just committed, saves of the same and of
/// later steps (what came after another start is no part of this run), and what killed saves have left. Touches only
/// names that saves use; what else lies in a save's folder stays, and the folder with it. Never fails: not being able
/// to tidy up is no reason to fail a save that is committed.
void remove_older_saves(const std::string& dir, const std::string& name, const Retention& retention) noexcept;

}  // namespace sherd
