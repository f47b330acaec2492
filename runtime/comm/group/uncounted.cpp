#include "runtime/comm/group/uncounted.h"

#include <utility>

#include "runtime/comm/group/agree.h"

namespace sherd::comm {

namespace {
thread_local bool is_uncounted = false;
}

bool is_agreeing() { return is_uncounted; }

Uncounted::Uncounted() : outer_(std::exchange(is_uncounted, true)) {}
Uncounted::~Uncounted() { is_uncounted = outer_; }

}  // namespace sherd::comm
