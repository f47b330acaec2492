#include "compile/ir/builder.h"

#include "runtime/op/rows/collective_attrs.h"

namespace sherd::ir {

GraphNode node_beside(const GraphNode& node, const Op& op, Attrs attrs) {
  GraphNode fresh;
  fresh.op = &op;
  fresh.attrs = std::move(attrs);
  fresh.module = node.module;
  fresh.phase = node.phase;
  return fresh;
}

TensorRef add_temporary(Program& program, const Shape& shape, DType dtype, Device device, MemoryCategory category) {
  const auto id = static_cast<ValueId>(program.values.size());
  Value& value = program.values.emplace_back();
  value.bytes = numel(shape) * byte_size(dtype);
  value.category = category;
  value.device = device;
  value.home = {id, dtype, shape, contiguous_strides(shape), 0};
  return value.home;
}

SmallVec<TensorMeta, 4> metas_of(const Program& program, const GraphNode& node) {
  SmallVec<TensorMeta, 4> metas;
  metas.reserve(node.in.size());
  for (const TensorRef& ref : node.in) {
    if (!ref.defined()) {
      metas.push_back(kAbsent);
      continue;
    }
    TensorMeta& meta = metas.emplace_back(ref.shape, ref.dtype, program.value(ref.value).device);
    meta.strides = ref.strides;
    meta.offset = ref.offset;
  }
  return metas;
}

Device device_of(const Program& program, const GraphNode& node) {
  if (node.op->device) return node.op->device(node.attrs);
  for (const TensorRef& ref : node.out)
    if (ref.defined()) return program.value(ref.value).device;
  for (const TensorRef& ref : node.in)  // numbers of the host mix with tensors of any device
    if (ref.defined() && program.value(ref.value).device != Device::cpu()) return program.value(ref.value).device;
  return Device::cpu();
}

ProcessGroup* group_of(const GraphNode& node) {
  const AttrKind* const kind = node.attrs.kind();
  return kind && *kind == attr_kind<CollectiveAttrs> ? find_group(node.attrs.as<CollectiveAttrs>().group) : nullptr;
}

}  // namespace sherd::ir
