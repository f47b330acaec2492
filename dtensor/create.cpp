#include "dtensor/create.h"

#include "dtensor/local_runs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/random_attrs.h"

namespace sherd {

namespace {

void check_layout(const Spec* spec, const Shape& shape) {
  check(spec != nullptr, "a tensor of shape {} needs a layout to be made in", shape);
  check(!spec->is_partial(), "a tensor cannot be made as {}: values become Partial by ops only", spec->describe());
}

Tensor draw(const Op& row, const Spec* spec, const Tensor& step, RandomAttrs attrs) {
  const Shape shape = attrs.shape;
  check_layout(spec, shape);
  std::int64_t first = 0;
  attrs.shape = spec->local_shape(shape);
  attrs.runs = local_runs(*spec, shape, first);
  attrs.first += first;
  const Tensor local = step.defined() ? call(row, attrs, step) : call(row, attrs);
  return Tensor::distributed(shape, spec, local);
}

}  // namespace

Tensor full(const Shape& shape, double value, const Spec* spec, DType dtype, Device device) {
  check_layout(spec, shape);
  return Tensor::distributed(shape, spec, full(spec->local_shape(shape), value, dtype, device));
}

Tensor zeros(const Shape& shape, const Spec* spec, DType dtype, Device device) {
  return full(shape, 0, spec, dtype, device);
}

Tensor ones(const Shape& shape, const Spec* spec, DType dtype, Device device) {
  return full(shape, 1, spec, dtype, device);
}

Tensor random_normal(const Shape& shape, std::uint64_t key, double mean, double std, const Spec* spec,
                     std::int64_t first, DType dtype, Tensor step, Device device) {
  return draw(op::random_normal, spec, step,
              {.shape = shape,
               .dtype = dtype,
               .key = key,
               .first = first,
               .a = static_cast<float>(mean),
               .b = static_cast<float>(std),
               .device = device});
}

Tensor random_uniform(const Shape& shape, std::uint64_t key, double low, double high, const Spec* spec,
                      std::int64_t first, DType dtype, Tensor step, Device device) {
  return draw(op::random_uniform, spec, step,
              {.shape = shape,
               .dtype = dtype,
               .key = key,
               .first = first,
               .a = static_cast<float>(low),
               .b = static_cast<float>(high),
               .device = device});
}

}  // namespace sherd
