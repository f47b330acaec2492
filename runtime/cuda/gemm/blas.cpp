#include "runtime/cuda/gemm/blas.h"

#include <string_view>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/gemm/gemm_choice.h"
#include "runtime/exec/picks.h"
#include "runtime/os/settings.h"

namespace sherd::cuda {

namespace {

// What NVIDIA advises: Hopper's fastest kernels want more.
std::size_t advised_workspace(int major) { return std::size_t{major >= 9 ? 32u : 8u} << 20; }

// Choices hold for one kind of device and one version of the library.
std::string machine_of(const cudaDeviceProp& p) {
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, cuBLASLt {}", p.name, p.major, p.minor,
                     p.multiProcessorCount, cublasLtGetVersion());
}

}  // namespace

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check_device(what);
  fail("{}: {} ({})", what, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

BlasOptions requested_blas_options() {
  BlasOptions options{.tune = !picks_of_rank().is_reproducible, .cache_folder = cache_folder()};
  const std::string request = requested_matmul();
  for (std::string_view rest = request; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    if (word == "untuned") options.tune = false;
    else if (word == "tf32") options.tf32 = true;
    else fail("SHERD_MATMUL: '{}' in '{}' is neither 'untuned' nor 'tf32'; separate several by commas", word, request);
  }
  return options;
}

std::string describe_matmul() {
  try {
    const BlasOptions options = requested_blas_options();
    const std::string precision = options.tf32 ? "f32 rounded to TF32; " : "";
    if (!options.tune) return precision + "algorithms untimed, by cuBLASLt's own order";
    return precision + "algorithms timed once, " + AlgorithmCache::describe(options.cache_folder);
  } catch (const Error& error) { return error.message(); }
}

Blas::Blas(Context& context, const BlasOptions& options)
    : context_(context), tf32_(options.tf32), workspace_bytes_(advised_workspace(context.properties().major)) {
  choices_ = std::make_unique<GemmChoices>(
      options.tune, AlgorithmCache(options.tune ? options.cache_folder : "", machine_of(context.properties())));
  workspace_ =
      context.lasting_allocator().allocate(static_cast<std::int64_t>(workspace_bytes_), MemoryCategory::workspace);
  const cublasStatus_t status = cublasLtCreate(&handle_);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  context_.lasting_allocator().release(workspace_, static_cast<std::int64_t>(workspace_bytes_),
                                       MemoryCategory::workspace);
  check(status, "creating a cuBLASLt handle");
}

Blas::~Blas() {
  (void)cublasLtDestroy(handle_);
  context_.lasting_allocator().release(workspace_, static_cast<std::int64_t>(workspace_bytes_),
                                       MemoryCategory::workspace);
}

}  // namespace sherd::cuda
