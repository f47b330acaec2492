// Rows that make tensors from nothing: full and arange.
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/ops.h"

namespace sherd {

namespace {

void check_sizes(const Shape& shape) {
  for (std::int64_t d : shape) check(d >= 0, "a shape has no negative dims, got {}", shape);
}

Metas infer_full(const InferCall& call) {
  const auto& attrs = call.attrs.as<FullAttrs>();
  check_sizes(attrs.shape);
  return one_output(attrs.shape, attrs.dtype);
}

Metas infer_arange(const InferCall& call) {
  const auto& attrs = call.attrs.as<ArangeAttrs>();
  check(attrs.count >= 0, "arange needs a count that is not negative, got {}", attrs.count);
  check(attrs.dtype != DType::boolean, "arange has no bool result; cast a comparison instead");
  return one_output({attrs.count}, attrs.dtype);
}

}  // namespace

constinit const Op op::full{
    .name = "full",
    .doc = "-> shape: every element is `value`.",
    .attrs = &attr_kind<FullAttrs>,
    .infer = infer_full,
    .no_gradient = "no tensor input",
    .device = [](AttrsView attrs) { return attrs.as<FullAttrs>().device; },
};

constinit const Op op::arange{
    .name = "arange",
    .doc = "-> [count]: 0, 1, ... count-1.",
    .attrs = &attr_kind<ArangeAttrs>,
    .infer = infer_arange,
    .no_gradient = "no tensor input",
    .device = [](AttrsView attrs) { return attrs.as<ArangeAttrs>().device; },
};

void register_create(OpTable& table) { table.add({&op::full, &op::arange}); }

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  if (device.is_meta()) return Tensor::empty(shape, dtype, device);
  return call(op::full, FullAttrs{shape, value, dtype, device});
}

Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }

Tensor arange(std::int64_t count, DType dtype, Device device) {
  return call(op::arange, ArangeAttrs{count, dtype, device});
}

void fill_into(const Tensor& target, double value) {
  if (!target.is_contiguous())
    return copy_into(target, expand(full({}, value, target.dtype(), target.device()), target.shape()));
  call_op_into(op::full, {}, FullAttrs{target.shape(), value, target.dtype(), target.device()}, target, false);
}

}  // namespace sherd
