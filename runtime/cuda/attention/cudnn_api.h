#pragma once
// cuDNN's backend API: the functions we call, found at run time.
#include <cudnn.h>

#include "runtime/cuda/device/library.h"
#include "runtime/tensor/error.h"

namespace sherd::cuda {

struct CudnnApi {
  CudnnApi();
  Library library;
  std::string version;  ///< "9.19.0", also of one that is refused for its age; empty if none was found

  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

/// Opened at the first call; any thread.
const CudnnApi& cudnn_api();

/// cuDNN computes no such graph on this device.
class CudnnUnsupported : public Error {
 public:
  using Error::Error;
};
/// Throws Error "cuDNN: what: status: cuDNN's explanation", CudnnUnsupported if that is the reason, unless `status` is
/// success.
void check_cudnn(cudnnStatus_t status, const char* what);

}  // namespace sherd::cuda
