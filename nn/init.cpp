#include "nn/init.h"

#include "dtensor/local_runs.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

void fill_initial(const Tensor& target, const Init& init, std::string_view name, Seed seed) {
  GradMode off(false);
  const Tensor local = target.local().detach();
  if (init.kind == Init::Kind::constant) {
    if (local.numel() > 0) fill_into(local, init.a);
    return;
  }
  RandomAttrs attrs{.shape = local.shape(),
                    .dtype = local.dtype(),
                    .key = random_key(seed.value, name, "init"),
                    .a = static_cast<float>(init.a),
                    .b = static_cast<float>(init.b)};
  if (target.is_distributed()) {
    const Spec& spec = Spec::from(target);
    attrs.runs = local_runs(spec, target.shape(), attrs.first);
  }
  if (local.numel() == 0) return;
  // On the host, whatever the target's device: devices differ in the last bit of a logarithm.
  static const Op &normal = find_op("random_normal"), &uniform = find_op("random_uniform");
  Tensor drawn = call(init.kind == Init::Kind::normal ? normal : uniform, attrs);
  copy_into(local, std::move(drawn));
}

}  // namespace sherd::nn
