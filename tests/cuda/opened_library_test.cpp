// Libraries that are opened at run time: found with their path, or absent with the reason.
#include <gtest/gtest.h>

#include "runtime/cuda/device/library.h"

namespace sherd::cuda {

namespace {

TEST(OpenedLibrary, IsFoundWhereTheLoaderLooks) {
  double (*cosine)(double) = nullptr;
  Library library("libm.so.6");
  library.bind({{"cos", &cosine}});
  ASSERT_TRUE(library.usable()) << library.reason();
  EXPECT_EQ(cosine(0), 1);
  EXPECT_NE(library.path().find("/libm.so.6"), std::string::npos) << library.path();
  EXPECT_EQ(library.describe("1.2"), "1.2, " + library.path());
}

TEST(OpenedLibrary, AbsentItIsNamed) {
  const Library library("libsherd_absent.so.7");
  EXPECT_FALSE(library.usable());
  EXPECT_NE(library.describe("").find("libsherd_absent.so.7"), std::string::npos) << library.describe("");
}

TEST(OpenedLibrary, AMissingFunctionMakesItUnusable) {
  double (*cosine)(double) = nullptr;
  void (*missing)() = nullptr;
  Library library("libm.so.6");
  library.bind({{"sherd_missing", &missing}, {"cos", &cosine}});
  EXPECT_FALSE(library.usable());
  EXPECT_NE(library.reason().find("libm.so.6 has no sherd_missing"), std::string::npos) << library.reason();
  EXPECT_EQ(cosine, nullptr);
}

TEST(OpenedLibrary, AnOldVersionIsRefused) {
  Library library("libm.so.6");
  library.refuse("libm.so.6 is version 1, 2 is needed");
  EXPECT_EQ(library.describe("1"), "none: libm.so.6 is version 1, 2 is needed");
}

}  // namespace

}  // namespace sherd::cuda
