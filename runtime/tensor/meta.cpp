#include "runtime/tensor/meta.h"

namespace sherd {

const TensorMeta kAbsent{.absent = true};

}  // namespace sherd
