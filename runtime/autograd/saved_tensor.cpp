#include "runtime/autograd/saved_tensor.h"

namespace sherd {

SavedTensor::SavedTensor(const Tensor& tensor)
    : tensor_(tensor), version_(tensor.storage() ? tensor.storage()->version() : 0) {}

const Tensor& SavedTensor::unpack() const {
  const Ref<Storage>& storage = tensor_.storage();
  if (!storage) return tensor_;
  if (storage->owner) storage->owner->ensure_present(*storage);
  check(storage->version() == version_,
        "{} was saved for backward and has been written since (version {}, now {}): run backward before the optimizer "
        "step",
        describe(tensor_), version_, storage->version());
  return tensor_;
}

}  // namespace sherd
