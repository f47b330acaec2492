#include "runtime/op/wanted_layout.h"

namespace sherd {

namespace {
thread_local const Distributed* t_wanted = nullptr;
}

WantedLayout::WantedLayout(const Distributed* layout) : outer_(t_wanted) { t_wanted = layout; }
WantedLayout::~WantedLayout() { t_wanted = outer_; }
const Distributed* WantedLayout::current() { return t_wanted; }

}  // namespace sherd
