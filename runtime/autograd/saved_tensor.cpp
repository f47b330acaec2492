#include "runtime/autograd/saved_tensor.h"

namespace sherd {

namespace {
// The bytes are the local part's when the tensor is distributed; none on meta.
const Ref<Storage>& bytes_of(const Tensor& t) { return t.is_distributed() ? t.impl()->local->storage : t.storage(); }
}  // namespace

SavedTensor::SavedTensor(const Tensor& tensor) : tensor_(tensor) {
  const Ref<Storage>& storage = bytes_of(tensor);
  if (!storage) return;
  version_ = storage->version();
  if (!storage->owner) return;
  is_owned_ = true;
  ++storage->num_saved;
}

void SavedTensor::forget() noexcept { --bytes_of(tensor_)->num_saved; }

const Tensor& SavedTensor::unpack() const {
  if (!tensor_.defined()) return tensor_;  // an optional input that was not given
  const Ref<Storage>& storage = bytes_of(tensor_);
  if (!storage) return tensor_;
  if (storage->owner) storage->owner->ensure_present(*storage);
  check(storage->version() == version_,
        "{} was saved for backward and has been written since (version {}, now {}): run backward before the optimizer "
        "step",
        tensor_, version_, storage->version());
  return tensor_;
}

}  // namespace sherd
