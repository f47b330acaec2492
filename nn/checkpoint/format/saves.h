#pragma once
// The saves in a folder. Each is complete in a folder of its own, and counts from the moment it has a manifest:
//
//   DIR/step-000200/manifest.json   rank-00000.safetensors   rank-00001.safetensors
//   DIR/step-000100/...
//   DIR/lock                                                 while a run saves there (folder_lock.h)
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::ckpt {

/// A committed save.
struct SavePlace {
  std::string folder;     ///< with its files
  std::int64_t step = 0;  ///< by the folder's name
};

/// The committed saves at `path`, newest first, by name alone: what is in them may be damaged. `path` is a folder of
/// saves, or one save. Empty if there is none. Programs before version 3 of the format kept one save, whose manifest
/// is in DIR itself: it counts as older than the others. Throws Error if the folder cannot be read.
std::vector<SavePlace> list_saves(const std::string& path);

/// The folder of the first of them. Error naming `path` if there is none.
std::string newest_save(const std::string& path);

/// Links in the folder `path` that are named like saves newer than those there. They are none: what is behind one may
/// be another run's, or be gone. Never fails.
std::vector<std::string> links_newer_than_saves(const std::string& path) noexcept;

/// The folder in `dir` for a new save at `step`; no committed save has it, and it is no link.
std::string new_save_name(const std::string& dir, std::int64_t step);

/// Which of the older saves stay when a new one is committed.
struct Retention {
  int keep = 3;                 ///< the newest saves, the new one included; at least 1
  std::int64_t keep_every = 0;  ///< those at multiples of this step stay as well; 0: none
  bool replace = false;         ///< none of the older ones
};

/// After the save `name` is committed, removes from `dir` the saves that `retention` does not keep, other saves of the
/// same and of later steps (they belong to another run), and leftovers of killed saves. Touches only names that saves
/// use; other files in a save's folder stay, and the folder with them. Never fails: a failed clean-up is no reason to
/// fail a save that is committed.
void remove_older_saves(const std::string& dir, const std::string& name, const Retention& retention) noexcept;

}  // namespace sherd::ckpt
