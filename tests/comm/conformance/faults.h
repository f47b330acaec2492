#pragma once
// What every rank is told of one that fails, over any group: faults.cpp has the cases. Who makes a group instantiates
// them for it.
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/comm/conformance/engines.h"

namespace sherd::testing {

class Faults : public ::testing::TestWithParam<Engine> {
 protected:
  using Culprit = std::function<void(ProcessGroup& group, Device device)>;
  /// Rank 1 does that, the others gather; all are told `text`, and can go on after reset().
  void expect_told(const Culprit& culprit, const std::string& text) const;
};

}  // namespace sherd::testing
