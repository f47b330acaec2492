// NCCL's real library, where it is installed, on a host without a driver: bound, asked for its version, and refused by
// name. Python's wheels are folders made here.
#include <dlfcn.h>

#include <map>

#include <gtest/gtest.h>

#include "runtime/cuda/device/python_wheels.h"
#include "runtime/cuda/nccl/nccl_api.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace sherd::cuda::nccl {
namespace {

using sherd::testing::expect_error;
using sherd::testing::TempDir;

class InstalledNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(SHERD_NCCL_LIBRARY).empty()) GTEST_SKIP() << "NCCL is not installed";
  }
  const NcclApi api{Library("libnccl.so.2", {.variable = "SHERD_NCCL_LIB", .asked = SHERD_NCCL_LIBRARY})};
};

TEST_F(InstalledNccl, IsBoundAndSaysWhatItIs) {
  ASSERT_TRUE(api.library.usable()) << api.library.reason();
  EXPECT_GE(api.version, kOldestVersion);
  EXPECT_EQ(api.describe().find(version_text(api.version) + ", /"), 0u) << api.describe();
  EXPECT_EQ(api.missing.find("ncclCommRevoke") == std::string::npos, api.revoke != nullptr) << api.missing;
}

TEST_F(InstalledNccl, GivesTextsOfResultsThatWeDoNotKnow) {
  EXPECT_EQ(api.text_of(Result::invalid_usage, nullptr).find("invalid usage"), 0u);
  EXPECT_FALSE(api.text_of(static_cast<Result>(8), nullptr).empty());
  EXPECT_NO_THROW(check_nccl(api, Result::success, "nothing"));
}

TEST_F(InstalledNccl, WithoutADriverInitNamesItAndTheRemedy) {
  if (::dlopen("libcuda.so.1", RTLD_LAZY)) GTEST_SKIP() << "there is a driver";
  UniqueId id{}, other{};
  check_nccl(api, api.get_unique_id(&id), "making an id");
  check_nccl(api, api.get_unique_id(&other), "making an id");
  EXPECT_NE(std::string_view(id.bytes, sizeof id.bytes), std::string_view(other.bytes, sizeof other.bytes));
  for (const int blocking : {0, 1}) {
    Config config = config_for(api.version);
    config.blocking = blocking;
    Comm comm = nullptr;
    expect_error([&] { check_nccl(api, api.init_rank(&comm, 1, id, 0, &config), "a communicator of 1 rank", comm); },
                 {"NCCL " + version_text(api.version) + ": a communicator of 1 rank: unhandled cuda error",
                  "driver version is insufficient", "sherd info", "--group staged"});
    EXPECT_EQ(comm, nullptr);
  }
}

TEST(NcclLibrary, ThatIsAskedForAndAbsentIsNamed) {
  const NcclApi api(Library("libnccl.so.2", {.variable = "SHERD_NCCL_LIB", .asked = "/absent/libnccl.so.2"}));
  EXPECT_EQ(api.describe().find("none: SHERD_NCCL_LIB names it, but /absent/libnccl.so.2: "), 0u) << api.describe();
  EXPECT_EQ(api.version, 0);
}

TEST(NcclLibrary, ThatIsAnotherLibraryIsRefused) {
  const NcclApi api(Library("libm.so.6"));
  EXPECT_NE(api.describe().find("has no ncclGetVersion"), std::string::npos) << api.describe();
}

TEST(NcclLibrary, IsFoundInPythonsPackagesInTheirOrder) {
  const TempDir folder;
  const std::string file = "nvidia/nccl/lib/libnccl.so.2";
  std::map<std::string, std::string> variables{
      {"VIRTUAL_ENV", folder / "venv"}, {"PATH", folder / "usr/bin"}, {"HOME", folder / "home"}};
  const Environment environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  EXPECT_TRUE(files_of_wheels(environment, file).empty());
  folder.write("usr/bin/python3", "");
  std::vector<std::string> expected;
  for (const char* packages : {"venv/lib/python3.11/site-packages/", "usr/local/lib/python3.11/dist-packages/",
                               "home/.local/lib/python3.12/site-packages/"})
    expected.push_back(folder.write(packages + file, "a library"));
  EXPECT_EQ(files_of_wheels(environment, file), expected);
}

}  // namespace
}  // namespace sherd::cuda::nccl
