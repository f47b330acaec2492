#include "nn/init.h"

#include "dtensor/spec.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/element_runs.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

void fill_initial(const Tensor& target, const Init& init, std::string_view name, Seed seed) {
  GradMode off(false);
  const Tensor local = target.local().detach();
  if (local.numel() == 0) return;
  if (init.kind == Init::Kind::constant) {
    fill_into(local, init.a);
    return;
  }
  RandomAttrs attrs{.shape = local.shape(),
                    .dtype = local.dtype(),
                    .key = random_key(seed.value, name, "init"),
                    .a = static_cast<float>(init.a),
                    .b = static_cast<float>(init.b)};
  if (target.is_distributed()) {
    const Spec& spec = Spec::from(target);
    attrs.runs = element_runs(target.shape(), local.shape(), spec.local_offset(target.shape()), attrs.first);
  }
  // On the host, whatever the target's device: devices differ in the last bit of a logarithm.
  static const Op &normal = find_op("random_normal"), &uniform = find_op("random_uniform");
  Tensor drawn = call(init.kind == Init::Kind::normal ? normal : uniform, attrs);
  copy_into(local, std::move(drawn));
}

}  // namespace sherd::nn
