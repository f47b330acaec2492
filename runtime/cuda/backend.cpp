// The one symbol that libsherd.so looks for, and what this host offers.
#include <cstdlib>
#include <memory>

#include <cublasLt.h>
#include <sherd_header_hash.h>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/nvrtc.h"
#include "runtime/cuda/device/store.h"
#include "runtime/cuda/gemm/blas.h"
#include "runtime/cuda/group/kernels.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/nccl/nccl_api.h"
#include "runtime/cuda/nccl/nccl_group.h"
#include "runtime/op/core/device_library.h"
#include "runtime/op/core/layout_fingerprint.h"

namespace sherd::cuda {

namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string blas_version_text(std::size_t v) { return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100); }

std::string text(cudaError_t status) {
  return fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
}

// As nvidia-smi spells it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i)
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<std::uint8_t>(uuid.bytes[i]));
  return text;
}

// What the current device runs of this build.
std::string code_text() {
  cudaFuncAttributes code{};
  if (const cudaError_t status = find_code(&code); status != cudaSuccess) return text(status);
  return fmt::format("for compute capability {}.{}, from PTX of {}.{}", code.binaryVersion / 10,
                     code.binaryVersion % 10, code.ptxVersion / 10, code.ptxVersion % 10);
}

// CUDA's first call. Streams that wait for the host must not stand before others in the device's queues, also where
// ranks are threads: as many queues as there are, unless somebody has set the number.
cudaError_t count_devices(int* count) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return cudaGetDeviceCount(count);
}

class CudaBackend final : public Backend {
 public:
  CudaBackend() : status_(count_devices(&num_devices_)) {
    if (status_ == cudaSuccess) return;
    num_devices_ = 0;
    (void)cudaGetLastError();
  }

  Device::Kind kind() const override { return Device::Kind::cuda; }
  int num_devices() const override { return num_devices_; }

  std::string why_no_devices() const override {
    if (status_ == cudaSuccess)
      return num_devices_ > 0 ? "" : "the driver shows no CUDA device (is CUDA_VISIBLE_DEVICES empty?)";
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) return fmt::format("no NVIDIA driver on this host ({})", text(status_));
    if (driver < runtime)
      return fmt::format("the NVIDIA driver is for CUDA {}, this build needs {} or newer: update the driver ({})",
                         version_text(driver), version_text(runtime), text(status_));
    return text(status_);
  }

  std::vector<BackendFact> facts() const override {
    std::vector<BackendFact> facts;
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    facts.push_back({"CUDA runtime", version_text(runtime)});
    facts.push_back({"cuBLASLt", blas_version_text(cublasLtGetVersion())});
    facts.push_back({"cuDNN", describe_cudnn()});
    facts.push_back({"NCCL", nccl::nccl_api().describe()});
    facts.push_back({"NVRTC", nvrtc().library.describe(nvrtc().version)});
    facts.push_back({"attention", describe_attention()});
    facts.push_back({"matmul", describe_matmul()});
    facts.push_back({"driver", driver == 0 ? "none" : "for CUDA " + version_text(driver)});
    if (num_devices_ == 0) facts.push_back({"devices", why_no_devices()});
    for (int i = 0; i < num_devices_; ++i) {
      cudaDeviceProp p{};
      const cudaError_t status = cudaGetDeviceProperties(&p, i);
      facts.push_back({fmt::format("cuda:{}", i),
                       status != cudaSuccess ? text(status)
                                             : fmt::format("{}, compute capability {}.{}, {} multiprocessors, {}, {}",
                                                           p.name, p.major, p.minor, p.multiProcessorCount,
                                                           format_bytes(static_cast<std::int64_t>(p.totalGlobalMem)),
                                                           uuid_text(p.uuid))});
    }
    if (num_devices_ > 0) facts.push_back({"kernels", code_text()});
    return facts;
  }

  std::unique_ptr<DeviceContext> open(int index) override {
    auto context = std::make_unique<Context>(index);
    const cudaDeviceProp& p = context->properties();
    check(find_code() == cudaSuccess,
          "cuda:{} is {} with compute capability {}.{}, for which this build has no code; build for it with "
          "-DSHERD_CUDA_ARCHITECTURES={}{}-real (8.0, Ampere, is the oldest)",
          index, p.name, p.major, p.minor, p.major, p.minor);
    return context;
  }

  void register_kernels(OpTable& table) const override { cuda::register_kernels(table); }
  const comm::GroupKernels* group_kernels() const override { return &cuda::group_kernels(); }
  const comm::DeviceGroups* device_groups() const override { return &nccl::device_groups(); }

 private:
  int num_devices_ = 0;
  const cudaError_t status_;
};

Backend* backend() {
  static CudaBackend instance;
  return &instance;
}

}  // namespace

}  // namespace sherd::cuda

extern "C" __attribute__((visibility("default"))) const sherd::BackendEntry* sherd_backend() {
  static const sherd::BackendEntry entry{sherd::BackendEntry::kAbi, sherd::layout_fingerprint(sherd::kHeaderHash),
                                         sherd::cuda::backend};
  return &entry;
}
