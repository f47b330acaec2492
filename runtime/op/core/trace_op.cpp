#include "runtime/op/core/trace_op.h"

namespace sherd {

namespace {

constexpr std::size_t kShown = 3;  // inputs that are shown; the hundreds of an optimizer tell no more

}  // namespace

// Two different calls whose keys collide in 64 bits would share a text; only a trace or a timeline would show it.
std::uint64_t shapes_key(const OpCall& call) {
  std::uint64_t h = reinterpret_cast<std::uintptr_t>(&call.op);
  const auto mix = [&h](std::uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
  };
  mix(call.in.size());
  for (const Tensor& t : call.in.first(std::min(call.in.size(), kShown))) {
    if (!t.defined()) {
      mix(~std::uint64_t{0});
      continue;
    }
    mix(static_cast<std::uint64_t>(t.dtype()));
    for (const std::int64_t size : t.shape()) mix(static_cast<std::uint64_t>(size));
  }
  return h;
}

std::string call_shapes(const OpCall& call) {
  std::string text;
  for (const Tensor& t : call.in.first(std::min(call.in.size(), kShown)))
    text += (text.empty() ? "" : " ") + (t.defined() ? describe(t) : std::string("-"));
  if (call.in.size() > kShown) text += fmt::format(" ... {} in all", call.in.size());
  return text;
}

OpSpan::OpSpan(const OpCall& call) : span_(call.op.name, SpanKind::op) {
  if (Trace* trace = span_.trace(); trace && !call.in.empty())
    span_.set_detail(trace->intern(shapes_key(call), [&] { return call_shapes(call); }));
}

void OpSpan::queued() {
  const Trace* trace = span_.trace();
  if (!trace || !trace->waits_for_devices) return;
  for (const auto& device : RankContext::current().devices())
    if (!device->is_recording()) device->synchronize();
}

OpSpan::~OpSpan() { trace_memory(); }

// For a rank that computes on a device the device's memory is sampled.
void trace_memory() {
  RankContext& context = RankContext::current();
  if (!context.trace) return;
  Allocator& memory = context.devices().empty() ? context.allocator() : context.devices().front()->allocator();
  context.trace->sample_memory(memory.accounting().current());
}

}  // namespace sherd
