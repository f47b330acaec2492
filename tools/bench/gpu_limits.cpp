// What a card allows: copies within its memory, and the fastest of cuBLASLt's algorithms for a product. Speaks the
// benchmarks' protocol: prints an object when ready, then answers each line by {"seconds": [mean of the calls]}.
//
//   copy BYTES CALLS                     half of the bytes are read, half written
//   matmul NN|NT|TN M N K CALLS          bf16, row-major operands, f32 accumulation, 32 MiB of workspace
//   transfer up|down BYTES CALLS         between pinned memory of the host and the device
//   properties                           no seconds but {"properties": what CUDA says of the card}
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}
void require(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": " + cublasLtGetStatusString(status));
}

cudaStream_t g_stream = nullptr;

// bf16 between -4 and 4, as activations are: on constant data a card draws less power and clocks higher.
struct RandomNumbers {
  std::uint16_t* data = nullptr;
  std::size_t bytes = std::size_t{16} << 20;
};
const RandomNumbers& random_numbers() {
  static const RandomNumbers numbers = [] {
    RandomNumbers made;
    require(cudaMallocHost(reinterpret_cast<void**>(&made.data), made.bytes), "allocating pinned memory");
    std::mt19937 random(1);
    for (std::size_t i = 0; i < made.bytes / sizeof(std::uint16_t); ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      const std::uint32_t exponent = 0x7d + bits % 4;  // 1/4 to 4
      made.data[i] = static_cast<std::uint16_t>(((bits >> 16) & 0x807fu) | (exponent << 7));
    }
    return made;
  }();
  return numbers;
}

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) {
    require(cudaMalloc(&data_, bytes), "allocating device memory");
    const RandomNumbers& random = random_numbers();
    for (std::size_t done = 0; done < bytes; done += random.bytes)
      require(cudaMemcpyAsync(static_cast<char*>(data_) + done, random.data, std::min(random.bytes, bytes - done),
                              cudaMemcpyHostToDevice, g_stream),
              "filling device memory");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

template <class Call>
double seconds_per_call(int calls, Call&& call) {
  cudaEvent_t start, stop;
  require(cudaEventCreate(&start), "creating an event");
  require(cudaEventCreate(&stop), "creating an event");
  call();
  require(cudaEventRecord(start, g_stream), "recording an event");
  for (int i = 0; i < calls; ++i) call();
  require(cudaEventRecord(stop, g_stream), "recording an event");
  require(cudaEventSynchronize(stop), "waiting");
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, start, stop), "reading a timer");
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return milliseconds * 1e-3 / calls;
}

double copy(double bytes, int calls) {
  const auto half = static_cast<std::size_t>(bytes / 2);
  const Buffer from(half), to(half);
  return seconds_per_call(calls, [&] {
    require(cudaMemcpyAsync(to.get(), from.get(), half, cudaMemcpyDeviceToDevice, g_stream), "copying");
  });
}

double transfer(bool up, double size, int calls) {
  const auto bytes = static_cast<std::size_t>(size);
  const Buffer device(bytes);
  void* host = nullptr;
  require(cudaMallocHost(&host, bytes), "allocating pinned memory");
  const double seconds = seconds_per_call(calls, [&] {
    require(up ? cudaMemcpyAsync(device.get(), host, bytes, cudaMemcpyHostToDevice, g_stream)
               : cudaMemcpyAsync(host, device.get(), bytes, cudaMemcpyDeviceToHost, g_stream),
            "transferring");
  });
  cudaFreeHost(host);
  return seconds;
}

std::string properties() {
  constexpr std::pair<const char*, cudaDeviceAttr> kAttributes[] = {
      {"compute_capability_major", cudaDevAttrComputeCapabilityMajor},
      {"compute_capability_minor", cudaDevAttrComputeCapabilityMinor},
      {"multiprocessors", cudaDevAttrMultiProcessorCount},
      {"max_threads_per_multiprocessor", cudaDevAttrMaxThreadsPerMultiProcessor},
      {"max_blocks_per_multiprocessor", cudaDevAttrMaxBlocksPerMultiprocessor},
      {"registers_per_multiprocessor", cudaDevAttrMaxRegistersPerMultiprocessor},
      {"shared_bytes_per_block", cudaDevAttrMaxSharedMemoryPerBlock},
      {"shared_bytes_per_block_optin", cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {"shared_bytes_per_multiprocessor", cudaDevAttrMaxSharedMemoryPerMultiprocessor},
      {"l2_bytes", cudaDevAttrL2CacheSize},
      {"clock_khz", cudaDevAttrClockRate},
      {"memory_clock_khz", cudaDevAttrMemoryClockRate},
      {"memory_bus_bits", cudaDevAttrGlobalMemoryBusWidth},
      {"ecc", cudaDevAttrEccEnabled},
      {"compute_mode", cudaDevAttrComputeMode},
      {"copy_engines", cudaDevAttrAsyncEngineCount},
      {"host_native_atomics", cudaDevAttrHostNativeAtomicSupported},
      {"pageable_memory_access", cudaDevAttrPageableMemoryAccess},
      {"memory_pools", cudaDevAttrMemoryPoolsSupported},
      {"pci_bus", cudaDevAttrPciBusId},
  };
  cudaDeviceProp device{};
  require(cudaGetDeviceProperties(&device, 0), "asking for the device");
  int driver = 0;
  require(cudaDriverGetVersion(&driver), "asking for the driver");
  std::ostringstream text;
  text << "{\"name\": \"" << device.name << "\", \"memory_bytes\": " << device.totalGlobalMem
       << ", \"driver_version\": " << driver;
  for (const auto& [name, attribute] : kAttributes) {
    int value = 0;
    text << ", \"" << name << "\": ";
    if (cudaDeviceGetAttribute(&value, attribute, 0) == cudaSuccess) text << value;
    else text << "null", cudaGetLastError();
  }
  text << "}";
  return text.str();
}

class Layout {
 public:
  Layout(std::uint64_t rows, std::uint64_t columns) {  // column-major
    require(cublasLtMatrixLayoutCreate(&layout_, CUDA_R_16BF, rows, columns, static_cast<std::int64_t>(rows)),
            "layout");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

// Row-major C = A B is column-major C^T = B^T A^T: operands swap, what is stored transposed is transposed.
double product(const std::string& kind, std::uint64_t m, std::uint64_t n, std::uint64_t k, int calls) {
  static cublasLtHandle_t handle = [] {
    cublasLtHandle_t h;
    require(cublasLtCreate(&h), "creating a cuBLASLt handle");
    return h;
  }();
  constexpr std::size_t kWorkspace = std::size_t{32} << 20;
  const Buffer a(2 * m * k), b(2 * k * n), c(2 * m * n), workspace(kWorkspace);
  const bool ta = kind[0] == 'T', tb = kind[1] == 'T';
  const Layout la(ta ? m : k, ta ? k : m), lb(tb ? k : n, tb ? n : k), lc(n, m);
  cublasLtMatmulDesc_t description;
  require(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  const cublasOperation_t first = tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  require(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "describing");
  require(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
          "describing");
  cublasLtMatmulPreference_t preference;
  require(cublasLtMatmulPreferenceCreate(&preference), "preferences");
  require(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                               sizeof kWorkspace),
          "preferences");
  std::array<cublasLtMatmulHeuristicResult_t, 16> found{};
  int count = 0;
  require(cublasLtMatmulAlgoGetHeuristic(handle, description, lb.get(), la.get(), lc.get(), lc.get(), preference,
                                         static_cast<int>(found.size()), found.data(), &count),
          "asking for algorithms");
  const float one = 1, zero = 0;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const auto run = [&] {
      return cublasLtMatmul(handle, description, &one, b.get(), lb.get(), a.get(), la.get(), &zero, c.get(), lc.get(),
                            c.get(), lc.get(), &found[static_cast<std::size_t>(i)].algo, workspace.get(), kWorkspace,
                            g_stream);
    };
    if (run() != CUBLAS_STATUS_SUCCESS) continue;  // offered, but not for this problem
    best = std::min(best, seconds_per_call(std::max(1, calls / 3), [&] { require(run(), "multiplying"); }));
  }
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatmulDescDestroy(description);
  if (std::isinf(best)) throw std::runtime_error("cuBLASLt has no algorithm that works for this product");
  return best;
}

double seconds_for(const std::string& line) {
  std::istringstream words(line);
  std::string name, kind;
  words >> name;
  int calls = 0;
  double bytes = 0;
  if (name == "copy") {
    if (words >> bytes >> calls && bytes >= 2 && calls > 0) return copy(bytes, calls);
  } else if (name == "transfer") {
    if (words >> kind >> bytes >> calls && bytes >= 1 && calls > 0) return transfer(kind == "up", bytes, calls);
  } else if (name == "matmul") {
    std::uint64_t m = 0, n = 0, k = 0;
    if (words >> kind >> m >> n >> k >> calls && kind.size() == 2 && m && n && k && calls > 0)
      return product(kind, m, n, k, calls);
  }
  throw std::runtime_error("\"" + line + "\" is none of the requests at the head of gpu_limits.cpp");
}

}  // namespace

int main() {
  cudaDeviceProp device{};
  try {
    require(cudaGetDeviceProperties(&device, 0), "asking for the device");
    require(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking), "creating a stream");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("{\"peer\": \"limit\", \"device\": \"%s\"}\n", device.name);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      if (line == "properties") std::printf("{\"properties\": %s}\n", properties().c_str());
      else std::printf("{\"seconds\": [%.9g]}\n", seconds_for(line));
    } catch (const std::exception& error) { std::printf("{\"error\": \"%s\"}\n", error.what()); }
    std::fflush(stdout);
  }
}
