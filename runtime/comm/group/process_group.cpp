#include "runtime/comm/group/process_group.h"

#include "runtime/tensor/error.h"

namespace sherd {

std::string_view name(ReduceKind kind) {
  constexpr std::string_view names[] = {"sum", "avg", "max", "min", "product"};
  return names[static_cast<int>(kind)];
}

namespace {

void add(CommCounts& to, const CommCounts& from, int sign) {
  for (const auto item :
       {&CommCounts::all_gather, &CommCounts::reduce_scatter, &CommCounts::all_reduce, &CommCounts::broadcast,
        &CommCounts::barrier, &CommCounts::all_to_all, &CommCounts::send, &CommCounts::recv}) {
    (to.*item).calls += sign * (from.*item).calls;
    (to.*item).bytes += sign * (from.*item).bytes;
  }
  to.seconds += sign * from.seconds;
}

}  // namespace

CommCounts& CommCounts::operator+=(const CommCounts& other) {
  add(*this, other, 1);
  return *this;
}

CommCounts& CommCounts::operator-=(const CommCounts& other) {
  add(*this, other, -1);
  return *this;
}

std::shared_ptr<ProcessGroup> ProcessGroup::subgroup(std::span<const int>, std::string_view) {
  fail("a {} group cannot be divided", kind());
}

}  // namespace sherd
