// The dispatcher and its two lowest layers. The usual call is plain tensors with no mode on: one OR over the
// inputs' flags decides that, and the device layer runs.
#include "runtime/op/core/dispatch.h"

#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/exec/memory_log.h"
#include "runtime/exec/queue.h"
#include "runtime/exec/running_op.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/core/trace_op.h"
#include "runtime/op/core/work.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

std::atomic<LayerFunction> g_dist_layer{nullptr};

// Error for an input that is left out, unless the row says that it may be.
[[gnu::cold, gnu::noinline]] void check_optional(const Op& op, std::span<const Tensor> in) {
  if (op.optional == kAnyInput) return;
  for (const std::size_t i : indices(in))
    if (!in[i].defined() && (i >= 32 || (op.optional >> i & 1u) == 0))
      fail_empty(fmt::format("input {} of {}", i, op.name));
}
[[noreturn, gnu::cold, gnu::noinline]] void refuse_destination(const Op& op) {
  fail_empty(fmt::format("the destination of {}", op.name));
}

constexpr std::uint8_t kHasEmpty = 128;  // beside the flags of a TensorImpl

inline std::uint8_t flags_of(const Op& op, std::span<const Tensor> in) {
  std::uint8_t flags = 0;
  for (const Tensor& t : in)
    if (t.defined()) [[likely]]
      flags |= t.impl()->flags;
    else flags |= kHasEmpty;
  if (flags & kHasEmpty) [[unlikely]]
    check_optional(op, in);
  return flags;
}

inline std::uint8_t flags_of_destinations(const Op& op, std::span<const Tensor> into) {
  std::uint8_t flags = 0;
  for (const Tensor& t : into) {
    if (!t.defined()) [[unlikely]]
      refuse_destination(op);
    flags |= t.impl()->flags;
  }
  return flags;
}

// A donated input: moved in (the call frame holds the only handle), sole owner of its bytes, whole and dense.
bool can_donate(const Tensor& t, const TensorMeta& meta, Device device) {
  return t.defined() && t.impl()->use_count() == 1 && t.device() == device && t.dtype() == meta.dtype && t.storage() &&
         t.storage()->use_count() == 1 && t.is_contiguous() && t.offset() == 0 && t.shape() == meta.shape &&
         t.storage()->bytes() == t.bytes() && t.storage()->owner == nullptr && !t.storage()->is_borrowed();
}

MemoryCategory account_of(const OpCall& call) {
  return call.op.account ? call.op.account(call.attrs) : MemoryCategory::activations;
}

// Dense, in the order of dims that the row's infer asks for.
Tensor allocate_ordered(const OpCall& call, const TensorMeta& meta, Device device) {
  const Tensor dense = Tensor::empty(meta.shape, meta.dtype, device, account_of(call));
  return Tensor::make(dense.storage(), meta.shape, meta.strides, 0, meta.dtype, device);
}

Tensor allocate_output(const OpCall& call, const TensorMeta& meta, Device device) {
  if (!meta.strides.empty()) return allocate_ordered(call, meta, device);
  // Kernels of both may write over an input. Of a gather this must not hang on this rank's part being all there is:
  // where other ranks have none, their programs would be others than this one's.
  if (call.op.traits.pointwise || call.op.traits.same_shape)
    for (Tensor& t : call.in)
      if (can_donate(t, meta, device)) {
        if (!call.op.traits.collective) t.storage()->wait_to_write();  // a queue may still read it
        return Tensor::make_dense(t.storage(), meta.shape, meta.dtype, device);
      }
  return Tensor::empty(meta.shape, meta.dtype, device, account_of(call));
}

Tensors make_views(const OpCall& call, const Metas& metas) {
  const Tensor& base = call.in[0];
  Tensors out;
  for (const TensorMeta& m : metas)
    out.push_back(Tensor::make(base.storage(), m.shape, m.strides, m.offset, m.dtype, base.device()));
  return out;
}

// Device of a row that says where its outputs are made; meta if an input is.
Device device_said(const OpCall& call) {
  for (const Tensor& t : call.in)
    if (t.defined() && t.is_meta()) return Device::meta();
  return call.op.device(call.attrs);
}

[[noreturn, gnu::cold, gnu::noinline]] void refuse_devices(Device a, Device b) {
  fail("inputs are on different devices: {} and {}; move them to one with to()", to_string(a), to_string(b));
}

// Where a call runs. One-element tensors of the host mix with tensors of any device.
Device device_of(const OpCall& call) {
  if (call.op.device) return device_said(call);
  Device device = call.into.empty() ? Device::cpu() : call.into[0].device();
  bool decided = false;
  for (const Tensor& t : call.in) {
    if (!t.defined() || (t.numel() == 1 && t.device() == Device::cpu())) continue;
    if (decided && t.device() != device) refuse_devices(device, t.device());
    device = t.device();
    decided = true;
  }
  return device;
}

// Kernels of a device need all inputs on it, except host tensors of one element, which the caller copies there first.
bool lies_elsewhere(const Tensor& t, Device device) {
  return t.defined() && t.device() != device && t.device() == Device::cpu() && t.numel() == 1;
}

Tensor brought_to(Device device, const Tensor& t) {
  const Tensor on_device = Tensor::empty(t.shape(), t.dtype(), device, MemoryCategory::workspace);
  t.storage()->wait_to_read();
  if (on_device.is_ghost()) return on_device;
  DeviceContext& context = RankContext::current().device(device);
  const Kernel transfer = kernels_of(op::to_device).kernel[static_cast<std::size_t>(device.kind)];
  transfer({op::to_device, {&t, 1}, {&on_device, 1}, {}, {.device = &context}});
  return on_device;
}

// Kernels take addresses on several threads, so the rank's thread waits here for queues that still use the bytes:
// before reading, for queues that write; before writing, for all.
inline void wait_to_read(std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (t.defined() && t.storage()) t.storage()->wait_to_read();
}
void wait_to_write(std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (t.defined() && t.storage()) t.storage()->wait_to_write();
}

// Asks for rows that take addresses without a wait. What a call restores or releases is a place to it. (Others wait for
// what they read, here or in their kernel, which is an Error for released bytes.)
void check_present(const OpCall& call) {
  if (call.op.traits.waits) return;
  const ResidencyChange& change = call.op.residency;
  for (const std::size_t i : indices(call.in)) {
    const Tensor& t = call.in[i];
    if (t.defined() && t.storage() && !change.restores_input(i, call.attrs) && !change.releases_input(i, call.attrs))
      t.storage()->check_present();
  }
  for (const Tensor& t : call.into)
    if (t.storage()) t.storage()->check_present();
}

std::size_t num_mutated(const OpCall& call) {
  return call.op.mutated ? static_cast<std::size_t>(call.op.mutated({call.op, call.in, call.attrs})) : 0;
}

// Allocates the bytes that the row's scratch column asks for; null if it asks for none.
Ref<Storage> allocate_scratch(const OpCall& call, Scratch scratch_bytes, Device device) {
  const std::int64_t bytes = scratch_bytes({call.op, call.in, call.attrs});
  if (bytes <= 0) return {};
  Ref<Storage> scratch = Storage::allocate(bytes, MemoryCategory::workspace, device);
  trace_memory();
  return scratch;
}

// A ghost rank runs only kernels with the trait `issues`. For the others it keeps the effects on the rank's thread:
// the allocation of scratch, and the waits of rows with effects, whose kernels ask for the addresses of what they
// read.
void run_kernel(const OpCall& call, const RowKernels& kernels, std::span<const Tensor> out, Device device,
                bool accumulate) {
  RankContext& context = RankContext::current();
  const auto backend = static_cast<std::size_t>(device.kind);
  Ref<Storage> scratch;
  if (const Scratch scratch_bytes = kernels.scratch[backend]; scratch_bytes && !call.scratch)
    scratch = allocate_scratch(call, scratch_bytes, device);
  if (context.is_ghost()) [[unlikely]] {
    if (!call.op.traits.issues) wait_to_read(call.in);
    note_call(call, out);
    if (!call.op.traits.issues) return;
  }
  const Kernel kernel = kernels.kernel[backend];
  if (!kernel) fail("no {} kernel for {}", to_string(device), call.op.name);
  KernelCall kernel_call{call.op, call.in, out, call.attrs, {}, accumulate};
  if (call.op.traits.collective)
    kernel_call.exec.queue = &context.queue(kCollectiveQueue, device.is_meta() ? Device::cpu() : device);
  if (device != Device::cpu() && !context.is_ghost()) kernel_call.exec.device = &context.device(device);
  if (scratch) kernel_call.exec.scratch = scratch->write();
  else if (call.scratch) kernel_call.exec.scratch = call.scratch->write();
  if (call.op.traits.issues) return kernel(kernel_call);  // it computes nothing, and may wait for a queue
  const KernelMark mark(*context.state<RunningOpSlot>().running, call.op.name);
  kernel(kernel_call);
}

// Rows whose kernel cannot accumulate compute into temporaries, which are added afterwards. Eager calls and replays
// both come this way, so both round alike.
void write_into(const OpCall& call, const RowKernels& kernels, const Metas& metas, Device device) {
  check(metas.size() == call.into.size(), "{} outputs for {} destinations", metas.size(), call.into.size());
  for (const std::size_t i : indices(metas))
    check(metas[i].shape == call.into[i].shape() && metas[i].dtype == call.into[i].dtype(),
          "the destination is {}, the result is {}{}", call.into[i], name(metas[i].dtype), metas[i].shape);
  if (device.is_meta()) return;
  for (const Tensor& out : call.into) {
    check(!out.is_meta(), "the destination {} has no memory", out);
    if (out.device() != device)
      fail("the destination is on {}, the call runs on {}", to_string(out.device()), to_string(device));
  }
  if (call.accumulate && !call.op.traits.accumulates) {
    Tensors values;
    for (const TensorMeta& m : metas) values.push_back(Tensor::empty(m.shape, m.dtype, device));
    run_kernel(call, kernels, values, device, false);
    wait_to_read(values);
    wait_to_write(call.into);  // for collective rows nothing has waited for the destinations yet
    for (std::size_t i = 0; i < values.size(); ++i)
      run_kernel({op::copy, {&values[i], 1}, {}}, kernels_of(op::copy), {&call.into[i], 1}, device, true);
  } else {
    run_kernel(call, kernels, call.into, device, call.accumulate);
  }
  if (call.op.traits.versions) return;
  for (const Tensor& out : call.into) out.storage()->bump_version();
}

// A view has no kernel that could write: the elements it shows are copied.
void call_view_into(const OpCall& call) {
  OpCall alias{call.op, call.in, call.attrs, {}, false, call.wanted};
  Tensors shown = call_below_autograd(alias);
  OpCall into{op::copy, shown, {}, call.into, call.accumulate, call.wanted};
  call_below_autograd(into);
}

// The inputs that the row wrote in place get a new version.
inline void bump_mutated(const OpCall& call) {
  if (!call.op.mutated || call.op.traits.versions) return;
  for (const std::size_t i : up_to(num_mutated(call)))
    if (const Tensor& t = call.in[i]; t.storage()) t.storage()->bump_version();
}

Tensors run_on_device(const OpCall& call, Device device);

// The caller's inputs are not replaced: a recorder looks at them next.
Tensors run_with_scalars_brought(const OpCall& call, Device device) {
  Tensors in{std::span<const Tensor>(call.in)};
  const std::size_t written = num_mutated(call);
  for (const std::size_t i : indices(in)) {
    if (!lies_elsewhere(in[i], device)) continue;
    if (i < written)  // it would write into the copy
      fail("input {}, which it writes to, is on {}, others are on {}; move it with to()", i, to_string(in[i].device()),
           to_string(device));
    in[i] = brought_to(device, in[i]);
  }
  return run_on_device({call.op, in, call.attrs, call.into, call.accumulate, call.wanted, call.scratch}, device);
}

Tensors make_results(const OpCall& call, const RowKernels& kernels, const Metas& metas, Device device) {
  Tensors out;
  for (const TensorMeta& m : metas) out.emplace_back(allocate_output(call, m, device));
  if (!device.is_meta()) run_kernel(call, kernels, out, device, false);
  bump_mutated(call);
  return out;
}

Tensors run_on_device(const OpCall& call, Device device) {
  const RowKernels& kernels = kernels_of(call.op);
  const Metas metas = call.op.infer({call.op, call.in, call.attrs});
  if (call.op.traits.view) return make_views(call, metas);
  if (device.has_backend())
    for (const Tensor& t : call.in)
      if (lies_elsewhere(t, device)) [[unlikely]]
        return run_with_scalars_brought(call, device);
  if (call.op.traits.issues) check_present(call);
  // Collective rows hand their bytes to a queue, which orders the accesses itself; kernels of rows with other effects
  // wait for what they read themselves.
  if (!call.op.traits.collective) {
    if (!call.op.traits.effect) wait_to_read(call.in);
    if (call.op.mutated) wait_to_write(std::span<const Tensor>(call.in).first(num_mutated(call)));
    if (!call.into.empty()) wait_to_write(call.into);
  }
  if (call.into.empty()) return make_results(call, kernels, metas, device);
  write_into(call, kernels, metas, device);
  bump_mutated(call);
  return {};
}

Tensors run_observed(const OpCall& call) {
  const MemoryLog::OpScope scope(RankContext::current().memory_log, call.op.name);
  OpSpan span(call);
  Tensors out = run_on_device(call, device_of(call));
  span.queued();
  return out;
}

// ---- the layers, for who has looked at the flags of the inputs and at the rank's modes already ----

inline Tensors run(const OpCall& call, const RankContext& context) {
  if ((context.trace || context.memory_log) && !call.op.traits.view) [[unlikely]]
    return run_observed(call);
  return run_on_device(call, device_of(call));
}

inline Tensors run_below_dist(OpCall& call, const RankContext& context) {
  if (context.capture) [[unlikely]]
    return capture_layer(call);
  return run(call, context);
}

Tensors run_distributed(OpCall& call) {
  const LayerFunction layer = g_dist_layer.load(std::memory_order_acquire);
  check(layer != nullptr, "distributed tensors need a mesh");
  return layer(call);
}

inline Tensors run_below_autograd(OpCall& call, std::uint8_t flags, const RankContext& context) {
  if ((flags & TensorImpl::kDistributed) || call.op.traits.placement) [[unlikely]]
    return run_distributed(call);
  return run_below_dist(call, context);
}

Tensors dispatch(OpCall& call) {
  const std::uint8_t flags = flags_of(call.op, call.in);
  const RankContext& context = RankContext::current();
  if ((flags & TensorImpl::kRequiresGrad) && context.grad_enabled) return autograd_layer(call);
  return run_below_autograd(call, flags, context);
}

}  // namespace

// Adds to an error what only the dispatcher knows: op, inputs, module and rank. The one place for every op.
void rethrow_with_context(const OpCall& call, Error& error) {
  if (error.has("inputs")) throw;
  std::string inputs;
  const std::size_t shown = std::min<std::size_t>(call.in.size(), 6);
  for (const std::size_t i : up_to(shown)) inputs += (i ? "  " : "") + describe(call.in[i]);
  if (shown < call.in.size()) inputs += fmt::format("  ... {} in all", call.in.size());
  error.add("op", fmt::format("{}{}{}", call.op.name, call.attrs.empty() ? "" : " ", call.attrs.print()));
  error.add("inputs", inputs.empty() ? "none" : inputs);
  const RankContext& context = RankContext::current();
  std::string where = context.module_path ? *context.module_path : "";
  if (!context.rank_text.empty()) where += (where.empty() ? "" : "      ") + context.rank_text;
  if (context.step >= 0) where += fmt::format("{}step {}", where.empty() ? "" : "      ", context.step);
  if (!where.empty()) error.add(context.module_path ? "module" : "rank", where);
  throw;
}

Tensors call_op(const Op& op, std::span<Tensor> in, AttrsView attrs, Wanted wanted) {
  OpCall call{op, in, attrs, {}, false, wanted};
  try {
    return dispatch(call);
  } catch (Error& error) { rethrow_with_context(call, error); }
}

void call_op_into(const Op& op, std::span<Tensor> in, AttrsView attrs, const Tensor& out, bool accumulate,
                  Wanted wanted) {
  OpCall call{op, in, attrs, {&out, 1}, accumulate, wanted};
  try {
    if (op.traits.view) call_view_into(call);
    else call_below_autograd(call);
  } catch (Error& error) { rethrow_with_context(call, error); }
}

Tensors call_below_autograd(OpCall& call) {
  return run_below_autograd(call, flags_of(call.op, call.in) | flags_of_destinations(call.op, call.into),
                            RankContext::current());
}

Tensors call_below_dist(OpCall& call) { return run_below_dist(call, RankContext::current()); }

Tensors capture_layer(OpCall& call) {
  CaptureSink* capture = RankContext::current().capture;
  if (!capture || call.op.traits.view) return device_layer(call);
  capture->prepare(call.op, call.in);
  Tensors out = device_layer(call);
  capture->record(call.op, call.attrs, call.in, call.into.empty() ? std::span<const Tensor>(out) : call.into,
                  call.accumulate);
  return out;
}

Tensors device_layer(OpCall& call) { return run(call, RankContext::current()); }

void install_dist_layer(LayerFunction layer) { g_dist_layer.store(layer, std::memory_order_release); }

}  // namespace sherd
