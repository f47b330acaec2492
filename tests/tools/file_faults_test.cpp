// Calls to files that fail: the library that makes them fail, tried on programs of the system, and what `sherd train`
// does when one of its own fails. Oracle: what those programs print and leave, and the list of a disk's files.
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>

#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

using namespace ckpt;

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kDiskError = std::to_string(EIO), kNoRoom = std::to_string(ENOSPC),
                  kNotSupported = std::to_string(ENOTSUP), kReadOnly = std::to_string(EROFS),
                  kStale = std::to_string(ESTALE);

class FileFaults : public ProgramTest {
 protected:
  /// The variables for a fault below `place` at the `at`th `call`.
  Words fault(const std::string& place, const std::string& call, int at, const std::string& error = kDiskError) const {
    return {"LD_PRELOAD=" SHERD_FILE_FAULTS, "FILE_FAULT_UNDER=" + dir_ / place, "FILE_FAULT_CALL=" + call,
            fmt::format("FILE_FAULT_AT={}", at), "FILE_FAULT_ERROR=" + error};
  }
  static Words also(Words variables, const Words& more) {
    variables.insert(variables.end(), more.begin(), more.end());
    return variables;
  }
  /// Five writes of ten bytes each.
  ProgramEnd write_five(const Words& variables, const std::string& file = "place/file") const {
    fs::create_directories(dir_ / "place");
    return run_program({"dd", "if=/dev/zero", "of=" + dir_ / file, "bs=10", "count=5"}, variables);
  }
  ProgramEnd train(const Words& flags, const Words& variables = {}) const {
    Words words{"train", config_file_, "--metrics", metrics_, "--save", saves_, "--save-every", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    return sherd(words, variables);
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    for (const SavePlace& save : list_saves(saves_)) steps.push_back(save.step);
    return steps;
  }
  /// What a run says whose third save fails by `error` in its first such call; it can go on afterwards.
  std::string failed_save(const std::string& call, const std::string& error, bool is_async) const {
    const Words on{"--steps", "4", "--resume", saves_, "--save-async", is_async ? "true" : "false"};
    fs::remove_all(saves_);
    EXPECT_EQ(train({"--steps", "2"}).status, kDone);
    const ProgramEnd end = train(on, fault("checkpoint/step-000003", call, 1, error));
    EXPECT_EQ(end.status, kFailed) << call;
    expect_within(end.err, {"step-000003"});
    if (is_async) expect_within(end.err, {"those before it stay", "when that is mended, go on by --resume " + saves_});
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{2, 1})) << call;
    for (const SavePlace& save : list_saves(saves_)) CheckpointReader(save.folder).verify();
    EXPECT_EQ(train(on).status, kDone) << call;
    return end.err;
  }
  std::string saves_ = dir_ / "checkpoint", metrics_ = dir_ / "metrics.jsonl";
};

TEST_F(FileFaults, TheCallOfThatNumberFails) {
  const ProgramEnd end = write_five(also(fault("place", "write", 3, kNoRoom), {"FILE_FAULT_MARK=" + dir_ / "mark"}));
  EXPECT_EQ(end.status, 1);
  expect_within(end.err, {"No space left on device"});
  EXPECT_EQ(dir_.read("place/file").size(), 20u) << "two were written";
  EXPECT_EQ(dir_.read("mark"), fmt::format(" write 3 {}\n", dir_ / "place/file"));
}

TEST_F(FileFaults, ItHappensOnceWhereThereIsAMark) {
  const Words variables = also(fault("place", "write", 1), {"FILE_FAULT_MARK=" + dir_ / "mark"});
  EXPECT_EQ(write_five(variables).status, 1);
  EXPECT_EQ(write_five(variables).status, 0);
}

TEST_F(FileFaults, OtherPlacesRanksAndCallsAreLeftAlone) {
  EXPECT_EQ(write_five(fault("other", "write", 1)).status, 0);
  EXPECT_EQ(write_five(fault("pla", "write", 1)).status, 0) << "no folder above it";
  EXPECT_EQ(write_five(fault("place", "rename", 1)).status, 0);
  EXPECT_EQ(write_five(fault("place", "write", 6)).status, 0);
  const Words variables = also(fault("place", "write", 1), {"FILE_FAULT_RANK=1"});
  EXPECT_EQ(write_five(variables).status, 0);
  EXPECT_EQ(write_five(also(variables, {"SHERD_RANK=0"})).status, 0);
  EXPECT_EQ(write_five(also(variables, {"SHERD_RANK=1"})).status, 1);
}

TEST_F(FileFaults, LaterCallsFailTooWhereItLasts) {
  const std::string script = "for i in 1 2 3 4; do echo $i >> \"$0\"; done";
  const auto try_with = [&](const Words& variables) {
    dir_.write("place/file", "");
    run_program({"/bin/sh", "-c", script, dir_ / "place/file"}, variables);
    return dir_.read("place/file");
  };
  EXPECT_EQ(try_with(fault("place", "open", 2)), "1\n3\n4\n");
  EXPECT_EQ(try_with(also(fault("place", "open", 2), {"FILE_FAULT_LASTS=1"})), "1\n");
}

TEST_F(FileFaults, ASignalComesBeforeTheCall) {
  EXPECT_EQ(write_five(also(fault("place", "write", 3, ""), {"FILE_FAULT_SIGNAL=9"})).status, 128 + SIGKILL);
  EXPECT_EQ(dir_.read("place/file").size(), 20u);
}

TEST_F(FileFaults, EachKindOfCallFails) {
  dir_.write("place/file", "text");
  const std::string file = dir_ / "place/file";
  const std::vector<std::pair<std::string, Words>> programs = {{"open", {"touch", file + "1"}},
                                                               {"sync", {"sync", file}},
                                                               {"rename", {"mv", file, file + "2"}},
                                                               {"mkdir", {"mkdir", dir_ / "place/folder"}},
                                                               {"unlink", {"rm", file}},
                                                               {"truncate", {"truncate", "-s", "3", file}},
                                                               {"allocate", {"fallocate", "-l", "9", file}},
                                                               {"read", {"head", "-c", "2", file}}};
  for (const auto& [call, command] : programs) {
    const ProgramEnd end = run_program(command, fault("place", call, 1));
    EXPECT_NE(end.status, 0) << call;
    expect_within(end.err, {"Input/output error"});
  }
}

TEST_F(FileFaults, CallsAreCounted) {
  write_five({"LD_PRELOAD=" SHERD_FILE_FAULTS, "FILE_FAULT_UNDER=" + dir_ / "place",
              "FILE_FAULT_COUNTS=" + dir_ / "counts", "SHERD_RANK=3"});
  expect_within(dir_.read("counts"),
                {fmt::format("3 {} open 1\n", dir_ / "place"), fmt::format("3 {} write 5\n", dir_ / "place")});
}

// Names that a library asks others for, or gives.
std::set<std::string> symbols(const std::string& which, const std::string& file) {
  const ProgramEnd end = run_program({"nm", "-D", "-P", "--without-symbol-versions", which, file});
  EXPECT_EQ(end.status, 0) << end.err;
  std::set<std::string> names;
  std::istringstream lines(end.out);
  for (std::string line; std::getline(lines, line);) names.insert(line.substr(0, line.find(' ')));
  return names;
}

// What the C library offers to change or read files by; mkostemp is asked for only where O_TMPFILE is not.
constexpr std::string_view kFileCalls =
    "creat open open64 openat openat64 fopen fopen64 freopen read readv pread pread64 preadv write writev pwrite "
    "pwrite64 pwritev sendfile sendfile64 splice copy_file_range fsync fdatasync syncfs msync rename renameat "
    "renameat2 "
    "link linkat mkdir mkdirat rmdir unlink unlinkat remove truncate truncate64 ftruncate ftruncate64 flock lockf "
    "fallocate fallocate64 posix_fallocate posix_fallocate64 mkstemp opendir stat stat64 lstat fstatat close";

TEST_F(FileFaults, WhatTheProductCallsIsCovered) {
  std::istringstream calls{std::string(kFileCalls)};
  const std::set<std::string> all{std::istream_iterator<std::string>(calls), {}};
  const std::set<std::string> covered = symbols("--defined-only", SHERD_FILE_FAULTS);
  for (const char* library : {SHERD_LIBRARIES}) {
    const std::set<std::string> asked = symbols("--undefined-only", library);
    EXPECT_TRUE(asked.contains("memcpy")) << "nm says nothing of " << library;
    for (const std::string& name : asked)
      EXPECT_TRUE(!all.contains(name) || covered.contains(name)) << library << " calls " << name;
  }
}

TEST_F(FileFaults, ASaveWithAFailedCallIsNamedAndThoseBeforeItStay) {
  for (const std::string call : {"mkdir", "open"})
    expect_within(failed_save(call, kNoRoom, false), {"No space left on device"});
  for (const std::string call : {"write", "sync", "close", "rename"})
    expect_within(failed_save(call, kNoRoom, false),
                  {"No space left on device", "nothing is kept of it; free space there and try again"});
}

// What others name must be on the disk before them: a save syncs all that it makes, each before the next, and a sync
// that fails leaves no save.
TEST_F(FileFaults, EverySyncOfASaveIsMadeAndMayFail) {
  const std::string step = saves_ + "/step-000001";
  const Words synced{saves_,  // which has gained the folder of the step
                     step + "/rank-00000.safetensors.partial",
                     step,  // where that got its name
                     step,  // before the manifest: of all ranks' files
                     saves_,
                     step + "/manifest.json.partial",
                     step};
  const auto save_with_fault_at = [&](int at) {
    for (const std::string& left : {saves_, dir_ / "mark"}) fs::remove_all(left);
    return train({"--steps", "1"}, also(fault("checkpoint", "sync", at), {"FILE_FAULT_MARK=" + dir_ / "mark"}));
  };
  for (std::size_t i = 0; i < synced.size(); ++i) {
    const int at = static_cast<int>(i) + 1;
    const ProgramEnd end = save_with_fault_at(at);
    EXPECT_EQ(end.status, kFailed) << at;
    ASSERT_TRUE(fs::exists(dir_ / "mark")) << at << " syncs are not made";
    EXPECT_EQ(dir_.read("mark"), fmt::format(" sync {} {}\n", at, synced[i]));
    expect_within(end.err, {"cannot sync", "Input/output error"});
    EXPECT_TRUE(steps().empty()) << at;
  }
  EXPECT_EQ(save_with_fault_at(static_cast<int>(synced.size()) + 1).status, kDone);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1}));
}

TEST_F(FileFaults, ADiskThatHasBecomeReadOnlyIsNamedAndTheSavesBeforeStay) {
  for (const bool is_async : {false, true})
    for (const std::string call : {"mkdir", "open"})
      expect_within(failed_save(call, kReadOnly, is_async), {"Read-only file system"});
}

TEST_F(FileFaults, AFileServerThatIsGoneIsNamedAndTheSavesBeforeStay) {
  for (const std::string call : {"open", "write", "sync", "rename"})
    expect_within(failed_save(call, kStale, call == "write" || call == "rename"), {"Stale file handle"});
}

TEST_F(FileFaults, AReadOnlyFolderEndsTheRunAtItsStart) {
  const auto refused = [&](const std::string& call, bool is_async, std::string_view remedy) {
    const ProgramEnd end = train({"--steps", "1", "--overwrite", "--save-async", is_async ? "true" : "false"},
                                 also(fault("checkpoint", call, 1, kReadOnly), {"FILE_FAULT_LASTS=1"}));
    EXPECT_EQ(end.status, kFailed) << call;
    expect_within(end.err, {saves_, "Read-only file system", remedy});
    EXPECT_FALSE(fs::exists(metrics_)) << "nothing was trained";
  };
  refused("mkdir", false, "name one where it can be made");
  ASSERT_EQ(train({"--steps", "2"}).status, kDone);
  fs::remove(metrics_);
  for (const bool is_async : {false, true})
    refused("open", is_async, "let this user write there, or save to another folder");
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{2, 1}));
  for (const SavePlace& save : list_saves(saves_)) CheckpointReader(save.folder).verify();
}

TEST_F(FileFaults, AFolderThatCannotBeLockedIsSaidOnce) {
  const ProgramEnd end =
      train({"--steps", "3"}, also(fault("checkpoint", "lock", 1, kNotSupported), {"FILE_FAULT_LASTS=1"}));
  EXPECT_EQ(end.status, kDone) << end.err;
  expect_within(end.err,
                {saves_, "cannot be locked (Operation not supported)", "a second job", "would not be noticed"});
  EXPECT_EQ(end.err.find("cannot be locked"), end.err.rfind("cannot be locked"));
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{3, 2, 1}));
  EXPECT_EQ(train({"--steps", "3", "--overwrite"}).err.find("cannot be locked"), std::string::npos);
}

TEST_F(FileFaults, ASaveThatCannotBeLookedAtIsNamed) {
  for (int at = 1; at <= 6; ++at) {
    fs::remove_all(saves_);
    const ProgramEnd saves = train({"--steps", "1"}, fault("checkpoint/step-000001", "stat", at));
    if (saves.status != kDone) expect_within(saves.err, {"Input/output error", "step-000001"});
    ASSERT_EQ(train({"--steps", "1", "--overwrite"}).status, kDone);
    const ProgramEnd loads = train({"--steps", "2", "--resume", saves_}, fault("checkpoint/step-000001", "stat", at));
    if (loads.status != kDone) expect_within(loads.err, {"Input/output error", "step-000001"});
  }
}

TEST_F(FileFaults, ASaveWhoseManifestCannotBeRemovedStaysWhole) {
  ASSERT_EQ(train({"--steps", "4", "--keep", "2"}, fault("checkpoint/step-000001", "unlink", 1)).status, kDone);
  for (const SavePlace& save : list_saves(saves_)) CheckpointReader(save.folder).verify();
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{4, 3})) << "gone with the next save";
  ASSERT_EQ(train({"--steps", "6", "--keep", "2", "--resume", saves_},
                  also(fault("checkpoint/step-000003/manifest.json", "unlink", 1), {"FILE_FAULT_LASTS=1"}))
                .status,
            kDone);
  for (const SavePlace& save : list_saves(saves_)) CheckpointReader(save.folder).verify();
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{6, 5, 3}));
}

TEST_F(FileFaults, ADiskThatDoesNotTellWhatIsASaveLosesNone) {
  ASSERT_EQ(train({"--steps", "2"}).status, kDone);
  ASSERT_EQ(train({"--steps", "3", "--resume", dir_ / "checkpoint/step-000002"},
                  also(fault("checkpoint/step-000001/manifest.json", "stat", 1), {"FILE_FAULT_LASTS=1"}))
                .status,
            kDone);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{3, 2, 1}));
}

TEST_F(FileFaults, ASaveThatCannotBeReadIsPassedOver) {
  for (const std::string call : {"open", "read"}) {
    fs::remove_all(saves_);
    ASSERT_EQ(train({"--steps", "3"}).status, kDone);
    const ProgramEnd end = train({"--steps", "5", "--resume", saves_},
                                 also(fault("checkpoint/step-000003", call, 1), {"FILE_FAULT_LASTS=1"}));
    EXPECT_EQ(end.status, kDone) << end.err;
    expect_within(end.err, {"going on with", "step-000002", "Input/output error"});
  }
}

TEST_F(FileFaults, MetricsThatCannotBeReadAreNotReplaced) {
  ASSERT_EQ(train({"--steps", "2"}).status, kDone);
  const std::string before = dir_.read("metrics.jsonl");
  for (const std::string call : {"stat", "open", "read", "truncate"}) {
    const ProgramEnd end = train({"--steps", "3", "--resume", saves_}, fault("metrics.jsonl", call, 1));
    EXPECT_EQ(end.status, kFailed) << call;
    expect_within(end.err, {"metrics.jsonl", "Input/output error"});
    EXPECT_EQ(dir_.read("metrics.jsonl"), before) << call;
  }
}

}  // namespace
}  // namespace sherd::testing
