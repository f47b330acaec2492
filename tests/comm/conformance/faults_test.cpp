// Faults on groups of the host.
#include "tests/comm/conformance/faults.h"

namespace sherd::testing {

INSTANTIATE_TEST_SUITE_P(Groups, Faults, ::testing::ValuesIn(host_engines()),
                         [](const auto& param) { return param.param.name; });

}  // namespace sherd::testing
