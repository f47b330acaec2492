#include "nn/init.h"

#include "dtensor/spec.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {

// Global index of the local part's first element, for parts that are one run of the row-major global tensor.
std::int64_t first_global_element(const Tensor& target) {
  if (!target.is_distributed()) return 0;
  const Spec& spec = Spec::from(target);
  for (int d = 1; d < target.ndim(); ++d)
    check(spec.axes_of(d).empty(), "initialising {}: only dim 0 may be split", describe(target));
  if (target.ndim() == 0 || target.size(0) == 0) return 0;
  return spec.local_range(0, target.size(0)).begin * (target.numel() / target.size(0));
}

}  // namespace

void fill_initial(const Tensor& target, const Init& init, std::string_view name, Seed seed) {
  GradMode off(false);
  const Tensor local = target.local().detach();
  if (local.numel() == 0) return;
  if (init.kind == Init::Kind::constant) {
    fill_into(local, init.a);
    return;
  }
  const std::uint64_t key = random_key(seed.value, name, "init");
  const std::int64_t first = first_global_element(target);
  // On the host, whatever the target's device: devices differ in the last bit of a logarithm.
  Tensor drawn = init.kind == Init::Kind::normal
                     ? random_normal(local.shape(), key, init.a, init.b, first, local.dtype())
                     : random_uniform(local.shape(), key, init.a, init.b, first, local.dtype());
  copy_into(local, std::move(drawn));
}

}  // namespace sherd::nn
