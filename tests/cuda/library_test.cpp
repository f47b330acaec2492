// The library is found and opened on any host; where there is no device it says why.
#include <gtest/gtest.h>

#include "runtime/op/core/device_library.h"

namespace sherd {

namespace {

TEST(CudaLibrary, OpensOnAnyHostAndSaysWhatIsMissing) {
  const DeviceLibrary& library = cuda_library();
  ASSERT_NE(library.backend, nullptr) << library.path << ": " << library.reason;
  if (library.backend->num_devices() == 0) EXPECT_FALSE(library.backend->why_no_devices().empty());
  else EXPECT_EQ(library.backend->why_no_devices(), "");
}

}  // namespace

}  // namespace sherd
