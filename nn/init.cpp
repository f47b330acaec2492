#include "nn/init.h"

#include "dtensor/create.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {

// Always on the host: devices differ in the last bit of a logarithm.
Tensor draw(const Tensor& target, const Init& init, std::uint64_t key) {
  const Shape& shape = target.shape();
  const DType dtype = target.dtype();
  const bool is_normal = init.kind == Init::Kind::normal;
  if (!target.is_distributed())
    return is_normal ? random_normal(shape, key, init.a, init.b, 0, dtype)
                     : random_uniform(shape, key, init.a, init.b, 0, dtype);
  const Spec* spec = &Spec::from(target);
  return (is_normal ? random_normal(shape, key, init.a, init.b, spec, 0, dtype)
                    : random_uniform(shape, key, init.a, init.b, spec, 0, dtype))
      .local();
}

}  // namespace

void fill_initial(const Tensor& target, const Init& init, std::string_view name, Seed seed) {
  GradMode off(false);
  const Tensor local = target.local().detach();
  if (init.kind == Init::Kind::constant) {
    if (local.numel() > 0) fill_into(local, init.a);
    return;
  }
  Tensor drawn = draw(target, init, random_key(seed.value, name, "init"));  // on all ranks: the layout may be an Error
  if (local.numel() > 0) copy_into(local, std::move(drawn));
}

}  // namespace sherd::nn
