// The functions of cuDNN that the backend calls, on the emulated GPU: any graph of the ops in program.cpp has one
// engine, which computes it op by op on the handle's stream. Wrong use is an error here where cuDNN might not notice.
#include <cudnn.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/cuda/device/device_emulated.h"
#include "tests/support/emulated_cudnn/program.h"

using namespace sherd::cuda::emulated;

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

// What a plan's workspace is written over with, to see that it is there.
constexpr std::int64_t kWorkspaceBytes = 256;

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

cudnnStatus_t refuse(cudnnStatus_t status, std::string why) {
  last_error() = std::move(why);
  return status;
}

// Its name is the kernel's in counters and reports.
void cudnn_graph() {}

Descriptor& as_descriptor(cudnnBackendDescriptor_t d) { return *static_cast<Descriptor*>(d); }

const Descriptor* graph_of(const Descriptor& plan) {
  const Descriptor* config = plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  return config ? config->descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) : nullptr;
}

}  // namespace

// SHERD_EMULATED_CUDNN_VERSION: 91002 for 9.10.2.
size_t cudnnGetVersion() {
  const char* asked = std::getenv("SHERD_EMULATED_CUDNN_VERSION");
  return asked ? std::strtoul(asked, nullptr, 10) : 91900;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
         : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                : "CUDNN_STATUS_BAD_PARAM";
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::snprintf(message, max_size, "%s", last_error().c_str());
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* d) {
  *d = new Descriptor{.type = type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete &as_descriptor(d);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  const auto size_of = [](cudnnBackendAttributeType_t t) -> std::size_t {
    switch (t) {
      case CUDNN_TYPE_BOOLEAN:
      case CUDNN_TYPE_CHAR: return 1;
      case CUDNN_TYPE_INT64:
      case CUDNN_TYPE_HANDLE:
      case CUDNN_TYPE_VOID_PTR:
      case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
      default: return 4;
    }
  };
  if (as_descriptor(d).finalized) return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is set after finalizing");
  const auto* first = static_cast<const std::byte*>(values);
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (std::int64_t i = 0; i < count; ++i)
      if (!as_descriptor(static_cast<const cudnnBackendDescriptor_t*>(values)[i]).finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is a descriptor that is not finalized");
  as_descriptor(d).attributes[name] = {type, count, {first, first + bytes}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t wanted, int64_t* count, void* values) {
  const Descriptor& d = as_descriptor(handle);
  if (!d.finalized) return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is read before finalizing");
  *count = 1;
  if (wanted == 0) return CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<std::int64_t*>(values) = kWorkspaceBytes;
  } else if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    Descriptor& config = as_descriptor(*static_cast<cudnnBackendDescriptor_t*>(values));
    config.attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] = d.attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    config.finalized = true;
  } else {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "reading attribute " + std::to_string(name) + " is not emulated");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  Descriptor& d = as_descriptor(handle);
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Descriptor* graph = graph_of(d);
    if (!graph) return refuse(CUDNN_STATUS_BAD_PARAM, "a plan without an engine");
    if (const std::string why = Program().read(*graph); !why.empty()) return refuse(CUDNN_STATUS_NOT_SUPPORTED, why);
  }
  d.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  const Descriptor& arguments = as_descriptor(pack);
  if (!as_descriptor(plan).finalized || !arguments.finalized)
    return refuse(CUDNN_STATUS_BAD_PARAM, "a plan or its arguments are not finalized");
  const auto ids = arguments.list<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = arguments.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  auto* const workspace = arguments.value<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  std::map<std::int64_t, void*> by_id;
  for (std::size_t i = 0; i < ids.size() && i < pointers.size(); ++i) by_id[ids[i]] = pointers[i];
  Program program;
  static_cast<void>(program.read(*graph_of(as_descriptor(plan))));
  for (const std::int64_t id : program.ids())
    if (!by_id.contains(id) || !by_id[id])
      return refuse(CUDNN_STATUS_BAD_PARAM, "no pointer for tensor " + std::to_string(id));
  std::vector<const void*> device = program.device_pointers(by_id);
  device.push_back(workspace);
  const cudaError_t status = enqueue(handle->stream, reinterpret_cast<const void*>(&cudnn_graph), dim3(1, 1, 1), 1, 0,
                                     std::move(device), [run = program.bind(by_id), workspace] {
                                       check_access("a plan's workspace", workspace, kWorkspaceBytes);
                                       std::memset(workspace, 0xff, kWorkspaceBytes);
                                       run();
                                     });
  return status == cudaSuccess ? CUDNN_STATUS_SUCCESS : refuse(CUDNN_STATUS_BAD_PARAM, cudaGetErrorString(status));
}
