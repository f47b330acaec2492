#include "runtime/autograd/saved_tensor.h"

namespace sherd {

SavedTensor::SavedTensor(const Tensor& tensor) : tensor_(tensor) {
  const TensorImpl& of = *tensor.impl();  // one is saved with every input of every recorded call
  const Ref<Storage>& storage = (of.flags & TensorImpl::kDistributed) ? of.local->storage : of.storage;
  if (!storage) return;
  version_ = storage->version();
  if (!storage->owner) return;
  form_ = Form::owned;
  ++storage->num_saved;
}

void SavedTensor::forget() noexcept {
  if (form_ == Form::packed) {
    delete packed_;
    return;
  }
  Storage& bytes = *bytes_of(tensor_);
  if (--bytes.num_saved == 0 && bytes.owner) bytes.owner->last_saved_dropped(bytes);
  tensor_.~Tensor();
}

const Tensor& SavedTensor::unpack() {
  if (form_ == Form::packed) [[unlikely]]
    *this = SavedTensor(packed_->unpack());
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
