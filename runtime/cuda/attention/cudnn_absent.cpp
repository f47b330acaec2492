// Stands in for the other cudnn_*.cpp files where cuDNN's headers were not found when this was built.
#include "runtime/cuda/attention/attention.h"

namespace sherd::cuda {

std::unique_ptr<AttentionLibrary> open_cudnn(Context&) { return nullptr; }

std::string describe_cudnn() { return "none: built without cuDNN's headers"; }

}  // namespace sherd::cuda
