// Which saves a folder holds, which are removed, and which processes may save there.
#include "nn/checkpoint/format/saves.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "nn/checkpoint/format/atomic_file.h"
#include "nn/checkpoint/format/folder_lock.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class Saves : public ::testing::Test {
 protected:
  void make(const std::string& name, bool committed = true) {
    fs::create_directories(dir_ / name);
    dir_.write(name + "/rank-00000.safetensors", "x");
    if (committed) dir_.write(name + "/manifest.json", "{}");
  }
  Names names() const {
    Names names;
    for (const SavePlace& save : list_saves(dir_.path())) names.push_back(fs::path(save.folder).filename().string());
    return names;
  }
  Names files() const {
    Names files;
    for (const auto& entry : fs::directory_iterator(dir_.path())) files.push_back(entry.path().filename().string());
    std::sort(files.begin(), files.end());
    return files;
  }
  TempDir dir_;
};

TEST_F(Saves, AreListedNewestFirst) {
  EXPECT_TRUE(list_saves(dir_ / "none").empty());
  EXPECT_TRUE(names().empty());
  for (const char* name : {"step-000005", "step-1000000", "step-000010.1", "step-000010", "step-000010.2"}) make(name);
  make("step-000020", false);
  for (const char* other :
       {"step-7", "step-000030x", "step-000030.", "step--00030", "steps", "step-99999999999999999999"})
    make(other);
  dir_.write("step-000040", "a file");
  EXPECT_EQ(names(), (Names{"step-1000000", "step-000010.2", "step-000010.1", "step-000010", "step-000005"}));
  EXPECT_EQ(list_saves(dir_.path())[0].step, 1000000);
  const auto one = list_saves(dir_ / "step-000005");
  ASSERT_EQ(one.size(), 1u) << "a save is one too";
  EXPECT_EQ(one[0].step, 5);
  EXPECT_TRUE(list_saves(dir_ / "step-000020").empty());
}

TEST_F(Saves, ANewNameIsNobodys) {
  EXPECT_EQ(new_save_name(dir_.path(), 7), "step-000007");
  make("step-000007", false);
  EXPECT_EQ(new_save_name(dir_.path(), 7), "step-000007") << "what a killed save left";
  make("step-000007");
  make("step-000007.1");
  EXPECT_EQ(new_save_name(dir_.path(), 7), "step-000007.2");
}

TEST_F(Saves, ANewNameIsNoLink) {
  fs::create_directories(dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", dir_ / "step-000007");
  fs::create_symlink(dir_ / "nowhere", dir_ / "step-000007.1");
  fs::create_symlink(dir_ / "step-000007.2", dir_ / "step-000007.2");  // a circle
  dir_.write("step-000007.3", "no folder");
  EXPECT_EQ(new_save_name(dir_.path(), 7), "step-000007.4");
}

TEST_F(Saves, ALinkThatIsNewerIsNoSaveAndIsNamed) {
  EXPECT_TRUE(links_newer_than_saves(dir_ / "none").empty());
  make("step-000005");
  make("elsewhere");
  for (const char* name : {"step-000004", "step-000005.1", "step-000009", "other"})
    fs::create_directory_symlink(dir_ / "elsewhere", dir_ / name);
  fs::create_directory_symlink(dir_ / "gone", dir_ / "step-000010");
  EXPECT_EQ(names(), Names{"step-000005"});
  EXPECT_EQ(links_newer_than_saves(dir_.path()),
            (Names{dir_ / "step-000005.1", dir_ / "step-000009", dir_ / "step-000010"}));
  EXPECT_TRUE(links_newer_than_saves(dir_ / "step-000005").empty());
}

TEST(AtomicFile, WhatIsBehindALinkOfItsNameStays) {
  const TempDir dir;
  const std::string text = dir.write("text", "of another");
  const auto write = [&] {
    AtomicFile file(dir / "file", 1);
    file.write(std::as_bytes(std::span("x", 1)));
    file.commit();
    EXPECT_EQ(dir.read("file"), "x");
    EXPECT_EQ(dir.read("text"), "of another");
    fs::remove(dir / "file");
  };
  fs::create_symlink(text, dir / "file.partial");
  write();
  fs::create_hard_link(text, dir / "file.partial");
  write();
  fs::create_symlink(text, dir / "file");
  write();
}

TEST_F(Saves, TheLastOnesStayAndWhatIsNoSaveOfOursToo) {
  for (const char* name : {"step-000001", "step-000002", "step-000003", "step-000004", "step-000005"}) make(name);
  make("step-000006", false);
  make("step-000004.1", false);
  dir_.write("step-000001/notes.txt", "of the user");
  dir_.write("lock", "");
  dir_.write("other.txt", "");
  remove_older_saves(dir_.path(), "step-000005", {.keep = 3});
  EXPECT_EQ(names(), (Names{"step-000005", "step-000004", "step-000003"}));
  EXPECT_EQ(files(), (Names{"lock", "other.txt", "step-000001", "step-000003", "step-000004", "step-000005"}));
  EXPECT_TRUE(fs::exists(dir_ / "step-000001/notes.txt"));
  EXPECT_FALSE(fs::exists(dir_ / "step-000001/rank-00000.safetensors"));
}

// A disk that fails to tell what a folder is may tell later.
TEST_F(Saves, WhatCannotBeLookedAtStaysAndTakesNobodysPlace) {
  for (const char* name : {"step-000001", "step-000002", "step-000003", "step-000005"}) make(name);
  for (const std::string name : {"step-000004", "step-000006"}) {
    make(name, false);
    fs::create_symlink("manifest.json", dir_ / (name + "/manifest.json"));  // a circle
  }
  EXPECT_EQ(names().size(), 6u) << "who reads it hears why it cannot be read";
  remove_older_saves(dir_.path(), "step-000005", {.keep = 3});
  EXPECT_EQ(names(), (Names{"step-000006", "step-000005", "step-000004", "step-000003", "step-000002"}));
}

TEST_F(Saves, ThoseAtMultiplesOfAStepStayToo) {
  for (int step = 1; step <= 9; ++step) make(fmt::format("step-{:06}", step));
  make("step-000010", false);
  remove_older_saves(dir_.path(), "step-000009", {.keep = 2, .keep_every = 3});
  EXPECT_EQ(names(), (Names{"step-000009", "step-000008", "step-000006", "step-000003"}));
  remove_older_saves(dir_.path(), "step-000009", {.keep = 1, .keep_every = 4});
  EXPECT_EQ(names(), (Names{"step-000009", "step-000008"}));
  remove_older_saves(dir_.path(), "step-000009", {.keep = 1, .keep_every = 4, .replace = true});
  EXPECT_EQ(names(), Names{"step-000009"});
}

TEST_F(Saves, ANewOneReplacesThoseOfItsStepAndOfLaterOnes) {
  for (const char* name : {"step-000001", "step-000002", "step-000002.1", "step-000003"}) make(name);
  remove_older_saves(dir_.path(), "step-000002.1", {.keep = 3});
  EXPECT_EQ(names(), (Names{"step-000002.1", "step-000001"}));
  make("step-000003");
  remove_older_saves(dir_.path(), "step-000003", {.keep = 3, .replace = true});
  EXPECT_EQ(names(), Names{"step-000003"});
}

TEST_F(Saves, TheManifestOfAnEarlierFormatGoesWithItsSave) {
  make("step-000001", false);
  dir_.write("manifest.json", "{}");
  EXPECT_EQ(list_saves(dir_.path()).size(), 1u);
  make("step-000002");
  EXPECT_EQ(list_saves(dir_.path()).size(), 2u);
  remove_older_saves(dir_.path(), "step-000002", {.keep = 3});
  EXPECT_EQ(files(), Names{"step-000002"});
}

TEST(FolderLock, OneHolderAtATimeAndNoneAfterItsProcess) {
  const TempDir dir;
  const std::string folder = dir / "a/b";
  {
    const FolderLock lock(folder, "process 12 on here");
    EXPECT_TRUE(fs::exists(folder + "/lock"));
    expect_error([&] { FolderLock(folder, "another"); }, {folder, "in use by process 12 on here", "another folder"});
  }
  EXPECT_FALSE(fs::exists(folder + "/lock"));
  const pid_t child = ::fork();
  if (child == 0) {
    new FolderLock(folder, "a child that is killed");  // NOLINT: the child never releases it
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder + "/lock"));
  const FolderLock after(folder, "the next");
}

TEST(FolderLock, AnotherFolderOfItsNameIsNotTheOne) {
  const TempDir dir;
  const std::string folder = dir / "disk";
  const FolderLock lock(folder, "a run");
  lock.check_is_still(lock.identity());
  fs::rename(folder, dir / "gone");
  expect_error([&] { lock.check_is_still(lock.identity()); },
               {folder, "has claimed", "No such file", "--resume " + folder});
  fs::create_directory(folder);
  expect_error([&] { lock.check_is_still(lock.identity()); },
               {folder, "another folder has its name", "disk may be gone"});
  fs::remove(folder);
  fs::rename(dir / "gone", folder);
  lock.check_is_still(lock.identity());
}

TEST(FolderLock, AFolderThatCannotBeMadeIsNamed) {
  const TempDir dir;
  dir.write("file", "");
  expect_error([&] { FolderLock(dir / "file", ""); }, {"cannot make the folder", "file"});
  expect_error([&] { FolderLock(dir / "file/below", ""); }, {"cannot make the folder", "file/below"});
}

}  // namespace
}  // namespace sherd::testing
