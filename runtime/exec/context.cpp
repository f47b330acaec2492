#include "runtime/exec/context.h"

#include <atomic>

#include "runtime/tensor/error.h"

namespace sherd {

thread_local RankContext* RankContext::current_ = nullptr;

RankContext::RankContext() : allocator_(new CachingAllocator) {}

RankContext::~RankContext() { allocator_->abandon(); }

RankContext& RankContext::adopt_default() {
  // Never destroyed: tensors in static storage may outlive main.
  static std::atomic<bool> taken{false};
  check(
      !taken.exchange(true),
      "this thread has no rank context: only a rank's own thread makes tensors. Open a sherd::RankScope at the top of "
      "a thread that is a rank, and pass plain buffers to threads that are not");
  static RankContext* instance = new RankContext;
  current_ = instance;
  return *instance;
}

const std::string* RankContext::intern(std::string_view text) {
  for (const auto& s : interned_)
    if (*s == text) return s.get();
  return interned_.emplace_back(std::make_unique<std::string>(text)).get();
}

RankScope::RankScope(std::string rank_text) : outer_(RankContext::current_) {
  context_.rank_text = std::move(rank_text);
  RankContext::current_ = &context_;
}

RankScope::~RankScope() { RankContext::current_ = outer_; }

}  // namespace sherd
