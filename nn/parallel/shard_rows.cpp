#include "nn/parallel/shard_rows.h"

#include <vector>

#include "runtime/op/attr_text.h"
#include "runtime/op/dispatch.h"

namespace sherd {

template <>
struct AttrValue<nn::ShardUnit*> : AttrIdentity<nn::ShardUnit*> {
  static void print(nn::ShardUnit* const& unit, AttrWriter& out) { out.raw(unit->unit_name()); }
  /// Always Error.
  [[noreturn]] static void read(nn::ShardUnit*&, AttrReader& in) {
    in.fail_because("a unit is an object of the running program, which no text names");
  }
};

namespace nn {

namespace {

struct UnitAttrs {
  ShardUnit* unit = nullptr;
  int plan = -1;
  static constexpr AttrField fields[] = {attr<&UnitAttrs::unit>("unit"), attr<&UnitAttrs::plan>("plan").optional()};
};

struct BufferAttrs {
  Shape shape;  ///< [bytes]
  Device device{};
  static constexpr AttrField fields[] = {attr<&BufferAttrs::shape>("shape"),
                                         attr<&BufferAttrs::device>("device").optional()};
};

// On one rank a device's kernels are called below; over several ranks there is only the host.
void run_gather(const KernelCall& c) { c.attrs.as<UnitAttrs>().unit->gather(); }
void run_release(const KernelCall& c) { c.attrs.as<UnitAttrs>().unit->release(); }
void run_reduce(const KernelCall& c) {
  const auto& a = c.attrs.as<UnitAttrs>();
  a.unit->reduce(a.plan, c.in[0], c.in.subspan(1));
}
void leave_as_is(const KernelCall&) {}

Metas no_outputs(const InferCall&) { return {}; }
int last_input(const InferCall& c) { return static_cast<int>(c.in.size()); }

constinit const Op kUnshard{
    .name = "unshard",
    .doc = "Gathers a unit's parameters from all ranks into their final place.",
    .attrs = &attr_kind<UnitAttrs>,
    .infer = no_outputs,
    .traits = {.collective = true, .issues = true, .effect = true},
    .no_gradient = "effect",
};

constinit const Op kRelease{
    .name = "release",
    .doc = "Frees a unit's gathered parameters.",
    .attrs = &attr_kind<UnitAttrs>,
    .infer = no_outputs,
    .traits = {.issues = true, .effect = true},
    .no_gradient = "effect",
};

constinit const Op kGradientBuffer{
    .name = "gradient_buffer",
    .doc = "Bytes for gradients, not initialised.",
    .attrs = &attr_kind<BufferAttrs>,
    .infer = [](const InferCall& c) { return Metas{TensorMeta{c.attrs.as<BufferAttrs>().shape, DType::u8}}; },
    .no_gradient = "no inputs",
    .category = MemoryCategory::gradients,
    .device = [](AttrsView attrs) { return attrs.as<BufferAttrs>().device; },
};

constinit const Op kReduce{
    .name = "reduce",
    .doc = "Reduce-scatters a unit's full gradients into this rank's shards.",
    .attrs = &attr_kind<UnitAttrs>,
    .infer = no_outputs,
    .traits = {.collective = true, .issues = true, .effect = true},
    .no_gradient = "effect",
    .mutated = last_input,
};

void register_unit_rows(OpTable& table) {
  table.add({&kUnshard, &kRelease, &kGradientBuffer, &kReduce});
  for (const auto backend : {Device::Kind::cpu, Device::Kind::cuda}) {
    table.kernel(kUnshard, backend, run_gather);
    table.kernel(kRelease, backend, run_release);
    table.kernel(kGradientBuffer, backend, leave_as_is);
    table.kernel(kReduce, backend, run_reduce);
  }
}

}  // namespace

void add_unit_rows() { add_rows(register_unit_rows); }

void issue_gather(ShardUnit& unit, const Tensor& shards, const Tensor& gathered) {
  Tensor in[] = {shards, gathered};
  call_op(kUnshard, in, UnitAttrs{&unit});
}

void issue_release(ShardUnit& unit, const Tensor& gathered) {
  Tensor in[] = {gathered};
  call_op(kRelease, in, UnitAttrs{&unit});
}

Tensor issue_gradient_buffer(std::int64_t bytes, Device device) {
  return call(kGradientBuffer, BufferAttrs{{bytes}, device});
}

void issue_reduce(ShardUnit& unit, int plan, const Tensor& full, std::span<const Tensor> out) {
  std::vector<Tensor> in{full};
  in.insert(in.end(), out.begin(), out.end());
  call_op(kReduce, in, UnitAttrs{&unit, plan});
}

}  // namespace nn
}  // namespace sherd
