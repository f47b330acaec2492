#include "runtime/op/wanted_layout.h"

namespace sherd {

namespace {
thread_local const Distributed* t_wanted = nullptr;
thread_local const Tensor* t_sum = nullptr;
}  // namespace

WantedLayout::WantedLayout(const Distributed* layout, const Tensor* sum) : outer_(t_wanted), outer_sum_(t_sum) {
  t_wanted = layout;
  t_sum = sum;
}
WantedLayout::~WantedLayout() {
  t_wanted = outer_;
  t_sum = outer_sum_;
}
const Distributed* WantedLayout::current() { return t_wanted; }
const Tensor* WantedLayout::sum() { return t_sum; }

}  // namespace sherd
