// cuBLASLt: handles, descriptions of products and matrices, preferences. Only what is listed can be set.
#include <cstring>
#include <iterator>

#include "tests/support/emulated_gpu/cublaslt.h"

namespace sherd::cuda::emulated {

LtObjects& lt_objects() {
  static auto* objects = new LtObjects;  // never destroyed: contexts may close at exit
  return *objects;
}

}  // namespace sherd::cuda::emulated

using namespace sherd::cuda::emulated;

namespace {

struct StatusText {
  cublasStatus_t status;
  const char *name, *text;
};
constexpr StatusText kStatuses[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an invalid value was used as a parameter"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality is not supported"},
};
const StatusText* find(cublasStatus_t status) {
  for (const StatusText& known : kStatuses)
    if (known.status == status) return &known;
  return nullptr;
}

template <class T, class Handle>
cublasStatus_t create(Handle* handle, const T& value) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  T* made = new T(value);
  lt_objects().alive.insert(made);
  *handle = reinterpret_cast<Handle>(made);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T, class Handle>
cublasStatus_t destroy(Handle handle) {
  T* object = lt_find<T>(handle);
  if (!object) return CUBLAS_STATUS_INVALID_VALUE;
  lt_objects().alive.erase(object);
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

// One settable member: its key and where it lies.
struct Member {
  int attribute;
  std::size_t offset, bytes;
};
template <class T, std::size_t n>
cublasStatus_t assign(T* object, const Member (&members)[n], int attribute, const void* value, std::size_t bytes) {
  if (!object || !value) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Member& member : members) {
    if (member.attribute != attribute) continue;
    if (member.bytes != bytes) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(reinterpret_cast<std::byte*>(object) + member.offset, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

constexpr Member kOperation[] = {
    {CUBLASLT_MATMUL_DESC_TRANSA, offsetof(LtOperation, transpose_a), 4},
    {CUBLASLT_MATMUL_DESC_TRANSB, offsetof(LtOperation, transpose_b), 4},
    {CUBLASLT_MATMUL_DESC_EPILOGUE, offsetof(LtOperation, epilogue), 4},
    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, offsetof(LtOperation, bias), sizeof(void*)},
};
constexpr Member kLayout[] = {
    {CUBLASLT_MATRIX_LAYOUT_LD, offsetof(LtLayout, ld), 8},
    {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, offsetof(LtLayout, batch), 4},
    {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, offsetof(LtLayout, stride), 8},
};
constexpr Member kPreference[] = {
    {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, offsetof(LtPreference, workspace_bytes), 8},
    {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, offsetof(LtPreference, reduction_schemes), 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, offsetof(LtPreference, alignment[0]), 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, offsetof(LtPreference, alignment[1]), 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, offsetof(LtPreference, alignment[2]), 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, offsetof(LtPreference, alignment[3]), 4},
};

struct Library {};

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t status) {
  const StatusText* known = find(status);
  return known ? known->name : "unknown status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  const StatusText* known = find(status);
  return known ? known->text : "unknown status";
}
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return lt_call("cublasLtCreate", [&](Gpu&) { return create(handle, Library{}); });
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  const std::lock_guard guard(gpu().lock);
  return destroy<Library>(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return lt_call("cublasLtMatmulDescCreate",
                 [&](Gpu&) { return create(handle, LtOperation{.compute = compute, .scale = scale}); });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  const std::lock_guard guard(gpu().lock);
  return destroy<LtOperation>(handle);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  return lt_call("cublasLtMatmulDescSetAttribute",
                 [&](Gpu&) { return assign(lt_find<LtOperation>(handle), kOperation, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  return lt_call("cublasLtMatrixLayoutCreate", [&](Gpu&) {
    return create(handle, LtLayout{.type = type, .rows = rows, .columns = columns, .ld = ld});
  });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  const std::lock_guard guard(gpu().lock);
  return destroy<LtLayout>(handle);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return lt_call("cublasLtMatrixLayoutSetAttribute",
                 [&](Gpu&) { return assign(lt_find<LtLayout>(handle), kLayout, attribute, value, bytes); });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  return lt_call("cublasLtMatmulPreferenceCreate", [&](Gpu&) { return create(handle, LtPreference{}); });
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  const std::lock_guard guard(gpu().lock);
  return destroy<LtPreference>(handle);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  return lt_call("cublasLtMatmulPreferenceSetAttribute",
                 [&](Gpu&) { return assign(lt_find<LtPreference>(handle), kPreference, attribute, value, bytes); });
}
