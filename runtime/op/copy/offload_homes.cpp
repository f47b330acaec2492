#include "runtime/op/copy/offload_homes.h"

#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// The pool has one handle, the recording that runs now has another one if it knows the home.
bool is_free(const Tensor& home) {
  const CaptureSink* const capture = RankContext::current().capture;
  const std::uint32_t known = capture && capture->has_seen(*home.storage()) ? 2 : 1;
  return home.impl()->use_count() == 1 && home.storage()->use_count() <= known;
}

// What failed to be written is of a step that was left; whoever comes next writes it again.
void forget_failure(Storage& home) {
  try {
    home.last_write().rethrow_if_reached();
  } catch (const Error&) { home.settle(); }
}

}  // namespace

Tensor OffloadHomes::take(std::int64_t bytes) {
  OfSize& size = sizes_[bytes];
  for (const std::size_t tried : indices(size.homes)) {
    const Tensor& home = size.homes[(size.next + tried) % size.homes.size()];
    if (!is_free(home)) continue;
    size.next = (size.next + tried + 1) % size.homes.size();
    forget_failure(*home.storage());
    return home;
  }
  size.homes.push_back(store_.allocate({bytes}, DType::u8));
  size.next = 0;
  return size.homes.back();
}

}  // namespace sherd
