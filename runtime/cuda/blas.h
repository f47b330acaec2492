#pragma once
// cuBLASLt for one context.
#include <cublasLt.h>

namespace sherd::cuda {

class Context;

/// Throws Error "what: text" unless `status` is success.
void check(cublasStatus_t status, const char* what);

class Blas {
 public:
  explicit Blas(Context& context);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  cublasLtHandle_t handle() const { return handle_; }

 private:
  Context& context_;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace sherd::cuda
