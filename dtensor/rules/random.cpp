// Dropout: a shard draws for its elements what the full tensor would draw for them, so any dim may be sharded.
//
//   x f32[4,6]{1: tp}, tp 1 of 2      element 0 of the shard is element 3 of the full tensor; runs of 3, 6 apart
#include "dtensor/local_runs.h"
#include "dtensor/rule.h"
#include "runtime/op/rows/random_attrs.h"

namespace sherd {

namespace {

Attrs dropout_attrs(const LocalCall& local) {
  auto attrs = local.call.attrs.as<DropoutAttrs>();
  const Shape& whole = local.call.shape(0);
  std::int64_t first = 0;
  attrs.runs = local_runs(*local.in[0], whole, first);
  attrs.first += first;
  return attrs;
}

}  // namespace

void register_random_rules(AddRule add) { add(op::dropout, {.attrs = dropout_attrs, .derived = true}); }

}  // namespace sherd
