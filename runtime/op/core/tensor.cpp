#include "runtime/op/core/tensor.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/op/core/grad_mode.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/pool.h"

namespace sherd {

void TensorImpl::destroy(TensorImpl* impl) { Pool<TensorImpl>::destroy(impl); }

TensorImpl::~TensorImpl() {
  if (grad_node) release_node(grad_node);
  drop_layout(meta.layout);
}

namespace {

// Up to this many elements, offsets and bytes, also rounded up, are computed without overflow.
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

[[noreturn]] void refuse_size(const Shape& shape, DType dtype, bool needs_memory) {
  const std::string what = fmt::format("{}{}", name(dtype), shape);
  for (std::int64_t d : shape) check(d >= 0, "a shape has no negative dims, got {}", shape);
  if (needs_memory) throw OutOfMemory(fmt::format("out of memory: {} is more than any machine holds", what));
  fail("{} has more elements than a tensor may have, {}", what, kMostElements);
}

// Row-major strides, of which there are as many as dims, and the number of elements; false if they cannot be.
bool fill_dense(TensorImpl& impl) {
  const Shape& shape = impl.meta.shape;
  std::int64_t step = 1, count = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    const std::int64_t size = shape[i];
    impl.meta.strides[i] = step;
    if (size == 0) count = 0;
    else if (size < 0 || __builtin_mul_overflow(step, size, &step) || step > kMostElements) return false;
  }
  impl.numel = count * step;
  return true;
}

// A whole dense tensor, still without bytes.
inline Ref<TensorImpl> dense_impl(const Shape& shape, DType dtype, Device device, bool needs_memory) {
  Ref<TensorImpl> impl = Ref<TensorImpl>::fresh(Pool<TensorImpl>::make(shape, shape, 0, dtype, device));
  if (!fill_dense(*impl)) [[unlikely]]
    refuse_size(shape, dtype, needs_memory);
  return impl;
}

std::int64_t checked_numel(const Shape& shape, DType dtype) {
  std::int64_t count = 1;
  bool fits = true;
  for (std::int64_t d : shape) fits &= !__builtin_mul_overflow(count, d, &count);
  if (!fits || count > kMostElements) [[unlikely]]
    refuse_size(shape, dtype, false);
  return count;
}

}  // namespace

Tensor TensorHandle::make(Ref<Storage> storage, const Shape& shape, const Strides& strides, std::int64_t offset,
                          DType dtype, Device device) {
  Ref<TensorImpl> impl = Ref<TensorImpl>::fresh(Pool<TensorImpl>::make(shape, strides, offset, dtype, device));
  impl->numel = checked_numel(shape, dtype);
  impl->contiguous = sherd::is_contiguous(shape, strides);
  impl->storage = std::move(storage);
  return Tensor(std::move(impl));
}

Tensor TensorHandle::make_dense(Ref<Storage> storage, const Shape& shape, DType dtype, Device device,
                                std::int64_t offset) {
  Ref<TensorImpl> impl = dense_impl(shape, dtype, device, false);
  impl->meta.offset = offset;
  impl->storage = std::move(storage);
  return Tensor(std::move(impl));
}

Tensor TensorHandle::empty(const Shape& shape, DType dtype, Device device, MemoryCategory category) {
  Ref<TensorImpl> impl = dense_impl(shape, dtype, device, !device.is_meta());
  if (!device.is_meta()) impl->storage = Storage::allocate(impl->numel * byte_size(dtype), category, device);
  return Tensor(std::move(impl));
}

Tensor TensorHandle::over(Ref<Storage> storage, const Shape& shape, const Strides& strides, std::int64_t offset,
                          DType dtype) {
  check(storage.get() != nullptr, "Tensor::over() of {}{} is given no storage", name(dtype), shape);
  std::int64_t last = offset;
  for (const int i : indices(shape)) last += (shape[i] - 1) * strides[i];
  check(sherd::numel(shape) == 0 || (offset >= 0 && (last + 1) * byte_size(dtype) <= storage->bytes()),
        "{}{} at element {} does not fit a storage of {} bytes", name(dtype), shape, offset, storage->bytes());
  const Device device = storage->device();
  return make(std::move(storage), shape, strides, offset, dtype, device);
}

namespace {
// Whether the local tensor is dense by a rule that gives all ranks the same answer, although their shards may differ
// in size: the stride of a dim counts unless the dim has one element in the global shape. A shard of one row is dense
// whatever the distance of rows, and must not count as dense for that.
bool is_dense_part(const Tensor& local, const Shape& whole) {
  std::int64_t step = 1;
  for (int d = whole.size() - 1; d >= 0; --d) {
    if (whole[d] == 1) continue;
    if (local.strides()[d] != step) return false;
    step *= std::max<std::int64_t>(local.shape()[d], 1);
  }
  return true;
}

// Strides of a dense tensor of `shape` whose dims are in the order of the local tensor's memory: contiguous() and
// reshape() of the global tensor then do what the local one needs. Of dims with equal strides the longer is the outer
// one: on ranks that have more than one element along the other, it has the larger stride.
Strides strides_like(const Tensor& local, const Shape& shape) {
  std::array<int, kMaxDims> dims{};
  std::iota(dims.begin(), dims.end(), 0);
  std::stable_sort(dims.begin(), dims.begin() + shape.size(), [&](int a, int b) {
    return std::pair(local.strides()[a], local.shape()[a]) > std::pair(local.strides()[b], local.shape()[b]);
  });
  Strides strides = Dims::filled(shape.size(), 0);
  std::int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    const int d = dims[static_cast<std::size_t>(i)];
    strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}
}  // namespace

Tensor TensorHandle::distributed(const Shape& shape, const Distributed* layout, const Tensor& local) {
  check(layout != nullptr, "Tensor::distributed() of shape {} is given no layout: a plain tensor needs no wrapping",
        shape);
  if (const Shape expected = layout->local_shape(shape); local.shape() != expected)
    fail("a tensor of shape {} with placement {} has local shape {} here, got {}", shape, layout->describe(), expected,
         local.shape());
  const bool is_dense = is_dense_part(local, shape);
  Tensor t = is_dense ? make_dense({}, shape, local.dtype(), local.device())
                      : make({}, shape, strides_like(local, shape), 0, local.dtype(), local.device());
  t.impl_->contiguous = is_dense;
  t.impl_->flags |= TensorImpl::kDistributed;
  t.impl_->set_layout(layout);
  t.impl_->local = local.impl_;
  return t;
}

Tensor TensorHandle::distributed_like(const Tensor& like, const Tensor& local) {
  check(like.is_distributed(), "{} is to lie as {}, which is plain", local, like);
  const TensorImpl& of = *like.impl_;
  const bool lies_alike = local.is_contiguous() ? of.local->contiguous : local.strides() == of.local->meta.strides;
  if (local.shape() != of.local->meta.shape || !lies_alike)
    fail("{} with strides {} does not lie as the local tensor of {}", local, local.strides(), like);
  Ref<TensorImpl> impl =
      Ref<TensorImpl>::fresh(Pool<TensorImpl>::make(of.meta.shape, of.meta.strides, 0, local.dtype(), local.device()));
  impl->numel = of.numel;
  impl->contiguous = of.contiguous;
  impl->flags |= TensorImpl::kDistributed;
  impl->set_layout(of.meta.layout);
  impl->local = local.impl_;
  return Tensor(std::move(impl));
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  check(static_cast<std::int64_t>(values.size()) == sherd::numel(shape), "{} values do not fill shape {} ({} elements)",
        values.size(), shape, sherd::numel(shape));
  Tensor t = empty(shape, dtype_of<T>);
  if (!t.is_ghost()) std::copy(values.begin(), values.end(), t.mutable_data<T>());
  return t;
}
template Tensor Tensor::from(std::span<const double>, const Shape&);
template Tensor Tensor::from(std::span<const float>, const Shape&);
template Tensor Tensor::from(std::span<const bf16>, const Shape&);
template Tensor Tensor::from(std::span<const f16>, const Shape&);
template Tensor Tensor::from(std::span<const std::int64_t>, const Shape&);
template Tensor Tensor::from(std::span<const std::int32_t>, const Shape&);
template Tensor Tensor::from(std::span<const std::uint8_t>, const Shape&);
template Tensor Tensor::from(std::span<const bool>, const Shape&);

Tensor Tensor::scalar(double value, DType dtype) {
  Tensor t = empty({}, dtype);
  if (t.is_ghost()) return t;
  visit_dtype(dtype, [&]<class T>(Type<T>) { *t.mutable_data<T>() = convert<T>(value); });
  return t;
}

namespace {
void check_readable(const Tensor& t, std::string_view what) {
  check(!t.is_distributed(), "{}: {} is distributed over ranks; use full_tensor() or local()", what, t);
  check(!t.is_meta(), "{}: {} is on the meta device and has no values; materialize the model first", what, t);
  const Storage* const bytes = t.storage().get();
  const Residency residency = bytes ? bytes->residency() : Residency::present;
  if (residency == Residency::ghost) fail("{}: {} has no bytes: this rank is a ghost", what, t);
  check_may_read(t, what);
  if (residency == Residency::released)
    fail("{}: {} has no bytes now: {} is {}; gather it by unshard(), or read the sharded parameter", what, t,
         describe(*bytes), name(residency));
}

// Not recorded: reading values is no part of a step.
Tensor on_host(const Tensor& t) {
  const GradMode off(false);
  return to(t.detach(), Device::cpu());
}
}  // namespace

void fail_empty(std::string_view what) { fail("{} is empty: the gradient of a parameter that was not used?", what); }

void TensorHandle::refuse_empty(const char* asked) { fail_empty(fmt::format("{}: this tensor", asked)); }

void Tensor::refuse_bytes() const {
  if (is_distributed())
    fail("{} is distributed over ranks and has no address; ask its local() part, or full_tensor()", *this);
  fail("{} has no bytes on this rank", *this);
}

double Tensor::item_as_double() const {
  if (!defined()) refuse_empty("item()");
  check(numel() == 1, "item() needs one element, got {}", *this);
  if (is_distributed() && layout()->is_replicated()) return local().item_as_double();
  check_readable(*this, "item()");
  if (device() != Device::cpu()) return on_host(*this).item_as_double();
  return visit_dtype(dtype(), [&]<class T>(Type<T>) { return convert<double>(*data<T>()); });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  if (!defined()) refuse_empty("to_vector()");
  if (is_distributed() && layout()->is_replicated()) return local().to_vector<T>();
  check_readable(*this, "to_vector()");
  if (device() != Device::cpu()) return on_host(*this).to_vector<T>();
  std::vector<T> result(static_cast<std::size_t>(numel()));
  if (result.empty()) {
    storage()->wait_to_read();  // what failed is said on ranks without elements too
    return result;
  }
  const int rows = std::max(ndim() - 1, 0);  // dims before the last, along which a row lies
  const std::int64_t length = ndim() > 0 ? shape()[rows] : 1, stride = ndim() > 0 ? strides()[rows] : 1;
  visit_dtype(dtype(), [&]<class S>(Type<S>) {
    Dims index = Dims::filled(ndim(), 0);
    for (std::size_t begin = 0; begin < result.size(); begin += static_cast<std::size_t>(length)) {
      const S* row = data<S>();
      for (const int i : up_to(rows)) row += index[i] * strides()[i];
      for (const std::int64_t i : up_to(length))
        result[begin + static_cast<std::size_t>(i)] = convert<T>(row[i * stride]);
      for (int i = rows - 1; i >= 0 && ++index[i] == shape()[i]; --i) index[i] = 0;
    }
  });
  return result;
}
template std::vector<double> Tensor::to_vector() const;
template std::vector<float> Tensor::to_vector() const;
template std::vector<std::int64_t> Tensor::to_vector() const;
template std::vector<std::int32_t> Tensor::to_vector() const;
template std::vector<std::uint8_t> Tensor::to_vector() const;
template std::vector<bool> Tensor::to_vector() const;

Tensor Tensor::detach() const { return known("detach()").grad_node ? alias() : *this; }

Tensor Tensor::alias() const {
  Tensor t = make(known("alias()").storage, shape(), strides(), offset(), dtype(), device());
  t.impl_->flags = static_cast<std::uint8_t>(impl_->flags & ~TensorImpl::kRequiresGrad);
  t.impl_->set_layout(layout());
  t.impl_->local = impl_->local;
  return t;
}

std::string describe(const TensorMeta& meta) {
  if (meta.absent) return "undefined";
  return fmt::format("{}{}{}", name(meta.dtype), to_string(meta.shape),
                     meta.layout             ? meta.layout->describe()
                     : meta.device.is_meta() ? "(meta)"
                                             : "");
}

}  // namespace sherd
