#pragma once
// cuBLASLt for one context: its handle, its workspace and the choice of algorithms.
#include <cstddef>
#include <memory>
#include <string>

#include <cublasLt.h>

#include "runtime/cuda/device/check.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

class Context;
class GemmChoices;

/// Throws Error "what: text" unless `status` is success.
void check(cublasStatus_t status, const char* what);

struct BlasOptions {
  bool tune = true;          ///< time candidates at the first call of a problem
  bool tf32 = false;         ///< f32 products may round their inputs to TF32 (10 bits of mantissa)
  std::string cache_folder;  ///< where choices are kept between processes; empty: nowhere
};
/// What SHERD_MATMUL and SHERD_CACHE ask for (os/settings.h). Throws Error naming an unknown word.
BlasOptions requested_blas_options();
/// How products choose their algorithms, for `sherd info`. Never throws.
std::string describe_matmul();

class Blas : NoCopy {
 public:
  Blas(Context& context, const BlasOptions& options);
  ~Blas();
  cublasLtHandle_t handle() const { return handle_; }
  /// One for all products of the context, which run one after another. It stays where it is, so recorded graphs may
  /// hold its address.
  void* workspace() const { return workspace_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  bool uses_tf32() const { return tf32_; }
  GemmChoices& choices() { return *choices_; }

 private:
  Context& context_;
  const bool tf32_;
  const std::size_t workspace_bytes_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::unique_ptr<GemmChoices> choices_;
};

}  // namespace sherd::cuda
