#include "nn/checkpoint/format/folders.h"

#include <filesystem>
#include <system_error>

#include "nn/checkpoint/format/atomic_file.h"
#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace fs = std::filesystem;

void make_folders(const std::string& path) {
  std::error_code error;
  const auto fail_with = [&path](const std::string& why) {
    fail("cannot make the folder \"{}\": {}; name one where it can be made", path, why);
  };
  fs::path full = fs::absolute(path, error).lexically_normal();
  if (error) fail_with(error.message());
  if (!full.has_filename()) full = full.parent_path();  // "a/b/"
  fs::path exists = full;                               // the innermost that is there
  while (!fs::exists(fs::status(exists, error)) && exists != exists.parent_path()) exists = exists.parent_path();
  error.clear();
  fs::create_directories(full, error);
  if (error) fail_with(error.message());
  const bool is_folder = fs::is_directory(full, error);
  if (error) fail_with(error.message());
  if (!is_folder) fail_with("there is a file of that name");
  for (fs::path made = full; made != exists && made.has_relative_path(); made = made.parent_path())
    sync_folder(made.parent_path().string());
}

bool is_file_there(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool is_known = !error || status.type() == fs::file_type::not_found;
  check(is_known, "cannot look for \"{}\": {}", path, error.message());
  return fs::exists(status);
}

}  // namespace sherd::ckpt
