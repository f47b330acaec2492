#include "runtime/cuda/blas.h"

#include "runtime/cuda/context.h"

namespace sherd::cuda {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("{}: {} ({})", what, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

Blas::Blas(Context& context) : context_(context) { check(cublasLtCreate(&handle_), "creating a cuBLASLt handle"); }

Blas::~Blas() { (void)cublasLtDestroy(handle_); }

}  // namespace sherd::cuda
