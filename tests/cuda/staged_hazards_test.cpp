// The edges of the fully_shard schedule on devices: each is missed by the hazard check when it is taken away, on two
// ranks over a staged group.
#include "runtime/comm/group/staged_group.h"
#include "tests/cuda/cuda_test.h"
#include "tests/parallel/hazard_edges.h"

namespace sherd::testing {
namespace {

using StagedHazards = cuda::CudaTest;

TEST_F(StagedHazards, F177_EveryRemovedEdgeIsFoundAndNamesBufferAndQueues) {
  expect_every_removed_edge_is_found(cuda::device_of_rank,
                                     [](const std::shared_ptr<ProcessGroup>& host) { return make_staged_group(host); });
}

}  // namespace
}  // namespace sherd::testing
