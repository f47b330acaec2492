#include "runtime/op/core/host_reads.h"

#include <algorithm>

#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/core/tape_modes.h"

namespace sherd {

void check_may_read(const Tensor& tensor, std::string_view what) {
  const RankContext& context = RankContext::current();
  if (context.capture) context.capture->refuse_read(tensor, what);
  if (records_segment())
    fail(
        "{} on {} in module \"{}\", whose forward is recomputed: backward runs its ops again and not the code that "
        "looks at the value; read it outside, or leave the module out of recomputation",
        what, tensor, context.module_path ? *context.module_path : "");
}

void HostReads::push(std::initializer_list<Tensor> scalars, Consumer use) {
  RankContext& context = RankContext::current();
  Waiting waiting{{}, std::move(use)};
  for (const Tensor& t : scalars) {
    check(t.numel() == 1 && !t.is_distributed() && !t.is_meta(), "a read takes plain tensors of one element, got {}",
          t);
    check(!t.is_ghost(), "a read: {} has no bytes: this rank is a ghost", t);
    check_may_read(t, "a read");
    if (t.device() == Device::cpu()) waiting.parts.push_back({nullptr, t.dtype(), t.item<double>()});
    else waiting.parts.push_back({context.device(t.device()).start_read(t.raw(), t.bytes()), t.dtype(), 0});
  }
  waiting_.push_back(std::move(waiting));
  while (waiting_.size() > max_in_flight_) use_first();
}

// The queue is empty if a read fails.
double HostReads::value_of(const Part& part) {
  if (!part.read) return part.value;
  const TraceSpan span("wait for the device");
  try {
    const std::byte* const bytes = part.read->wait();
    return visit_dtype(part.dtype,
                       [&]<class T>(Type<T>) { return convert<double>(*reinterpret_cast<const T*>(bytes)); });
  } catch (...) {
    waiting_.clear();
    throw;
  }
}

bool HostReads::is_ready() const {
  const std::vector<Part>& parts = waiting_.front().parts;
  return std::all_of(parts.begin(), parts.end(), [](const Part& p) { return !p.read || p.read->is_ready(); });
}

void HostReads::poll() {
  while (!waiting_.empty() && is_ready()) use_first();
}

void HostReads::finish() {
  while (!waiting_.empty()) use_first();
}

void HostReads::use_first() {
  const Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  std::vector<double> values;
  for (const Part& part : first.parts) values.push_back(value_of(part));
  first.use(values);
}

}  // namespace sherd
