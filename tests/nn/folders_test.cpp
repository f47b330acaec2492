// Folders of saves: their names are durable when they are made, and places that the system cannot look at are named.
// The test program has an fsync of its own, which notes what is synced and goes on to the system's.
#include "nn/checkpoint/format/folders.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "nn/checkpoint/format/folder_lock.h"
#include "nn/checkpoint/format/saves.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace {
std::vector<std::string>* synced_paths = nullptr;
}  // namespace

extern "C" __attribute__((visibility("default"))) int fsync(int file) {
  if (synced_paths != nullptr)
    synced_paths->push_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file)).string());
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

/// The folders below `dir`, itself included, that `body` syncs, each once, in order of their names.
template <class Body>
Paths synced_by(const TempDir& dir, Body&& body) {
  Paths paths;
  synced_paths = &paths;
  body();
  synced_paths = nullptr;
  std::erase_if(paths, [&](const std::string& path) { return !path.starts_with(dir.path()); });
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

TEST(Folders, EveryOneThatIsMadeHasADurableName) {
  const TempDir dir;
  const Paths expected = {dir.path(), dir / "a", dir / "a/b"};
  EXPECT_EQ(synced_by(dir, [&] { make_folders(dir / "a/b/c"); }), expected);
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
  EXPECT_EQ(synced_by(dir, [&] { make_folders(dir / "a/b/c"); }), Paths()) << "nothing is new";
  EXPECT_EQ(synced_by(dir, [&] { make_folders(dir / "a/d/"); }), Paths{dir / "a"}) << "with a slash at the end";
  EXPECT_EQ(synced_by(dir, [&] { make_folders(dir / "a/x/../e"); }), Paths{dir / "a"});
}

TEST(Folders, OfAFirstSaveTooHoweverItIsWritten) {
  const TempDir dir;
  EXPECT_EQ(synced_by(dir, [&] { const FolderLock lock(dir / "runs/first/", "a run"); }),
            (Paths{dir.path(), dir / "runs"}));
}

TEST(Folders, PlacesThatCannotBeLookedAtAreNamed) {
  const TempDir dir;
  fs::create_symlink(dir / "loop", dir / "loop");
  const std::string loop = dir / "loop", name = dir / std::string(300, 'n');
  for (const std::string& path : {loop, loop + "/below"}) {
    expect_error([&] { is_file_there(path); }, {"loop", "Too many levels of symbolic links"});
    expect_error([&] { make_folders(path); }, {"cannot make the folder", "loop"});
    expect_error([&] { list_saves(path); }, {"loop", "Too many levels of symbolic links"});
  }
  expect_error([&] { is_file_there(name); }, {"nnnn", "File name too long"});
  expect_error([&] { make_folders(name); }, {"nnnn", "File name too long"});
  expect_error([&] { list_saves(name); }, {"nnnn", "File name too long"});
  EXPECT_FALSE(is_file_there(dir / "nothing"));
  EXPECT_TRUE(is_file_there(dir.path()));
}

// What is left undone stays for the next save: the save that is committed has not failed.
TEST(Folders, TidyingNeverFailsASave) {
  const TempDir dir;
  fs::create_symlink(dir / "loop", dir / "loop");
  for (const std::string& folder : {dir / "loop", dir / "none", dir / std::string(300, 'n')})
    remove_older_saves(folder, "step-000001", {});
}

}  // namespace
}  // namespace sherd::testing
