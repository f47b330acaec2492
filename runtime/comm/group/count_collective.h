#pragma once
// Rows that communicate tell the counters in scope (comm_counter.h) by this, and name the op on whose behalf they do.
#include <cstdint>
#include <string_view>

#include "runtime/comm/group/comm_counter.h"
#include "runtime/tensor/for_scope.h"

namespace sherd {

/// A collective about to run, eagerly or in a replay. `bytes` are those of the full buffers, as in CommCounts. Op and
/// module are copied.
struct IssuedCollective {
  comm::CommOp kind;
  std::string_view op;        ///< row that communicates: "all_gather", "unshard"
  std::string_view module{};  ///< empty: the one whose forward, or backward, runs
  int ranks = 1;
  std::int64_t bytes = 0;
};

/// While in scope, collectives are on behalf of this op: the one whose inputs must be brought elsewhere. `op` is the
/// name of a row.
class CommCause {
 public:
  explicit CommCause(std::string_view op);

 private:
  const ForScope<std::string_view> cause_;
};

/// Tells all counters in scope. On the rank's thread; costs a branch if there is none.
void count_collective(const IssuedCollective& issued);

}  // namespace sherd
