// cuDNN's backend API is generic: descriptors of some type with attributes by number. One table says which attributes
// an op has; the rest of this file walks over it.
#include "runtime/cuda/attention/cudnn_graph.h"

#include <iterator>
#include <utility>

namespace sherd::cuda {

namespace {

constexpr auto kNone = static_cast<cudnnBackendAttributeName_t>(4095);  // no attribute has this number
constexpr std::int64_t kAlignment = 16, kScalarAlignment = 4;           // bytes

struct OpForm {
  cudnnBackendDescriptorType_t op;
  cudnnBackendAttributeName_t x, b, t, y;
  // The descriptor of what is computed, with its attributes; reshape has none.
  cudnnBackendAttributeName_t what_attribute;
  cudnnBackendDescriptorType_t what;
  cudnnBackendAttributeName_t precision, mode, axis;
  cudnnBackendAttributeType_t mode_type;
};

constexpr OpForm kForms[] = {
    // by CudnnOp::Kind
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     kNone, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR,
     CUDNN_ATTR_MATMUL_COMP_TYPE, kNone, kNone, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC,
     CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_POINTWISE_MODE},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kNone, kNone,
     CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
     CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_ATTR_REDUCTION_OPERATOR, kNone, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kNone, kNone,
     CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kNone, CUDNN_BACKEND_MATMUL_DESCRIPTOR, kNone, kNone, kNone, CUDNN_TYPE_INT64},
};

CudnnDims dense_strides(const CudnnDims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

// The descriptors that a plan refers to; they live as long as it does.
using Kept = std::vector<CudnnDescriptor>;
cudnnBackendDescriptor_t keep(Kept& kept, CudnnDescriptor d) {
  kept.push_back(std::move(d));
  return kept.back().get();
}

cudnnBackendDescriptor_t make_tensor(const CudnnTensor& t, std::int64_t id, Kept& kept) {
  CudnnDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const bool inner = t.kind == CudnnTensor::Kind::inner, scalar = t.kind == CudnnTensor::Kind::scalar;
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, t.type);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, t.dims.size(), t.dims.data());
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, t.strides.size(), t.strides.data());
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, scalar ? kScalarAlignment : kAlignment);
  d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, inner);
  d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, scalar);
  d.finalize("a tensor");
  return keep(kept, std::move(d));
}

cudnnBackendDescriptor_t make_op(const CudnnOp& op, std::span<const cudnnBackendDescriptor_t> tensors, Kept& kept) {
  const OpForm& form = kForms[static_cast<int>(op.kind)];
  CudnnDescriptor d(form.op);
  const std::pair<cudnnBackendAttributeName_t, int> operands[] = {
      {form.x, op.x}, {form.b, op.b}, {form.t, op.t}, {form.y, op.y}};
  for (const auto& [attribute, index] : operands)
    if (index >= 0) d.set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, tensors[static_cast<std::size_t>(index)]);
  if (form.what_attribute != kNone) {
    CudnnDescriptor what(form.what);
    what.set(form.precision, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (form.mode != kNone) what.set(form.mode, form.mode_type, op.mode);
    if (op.axis >= 0) what.set(form.axis, CUDNN_TYPE_INT64, op.axis);
    what.finalize("an operation");
    d.set(form.what_attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, keep(kept, std::move(what)));
  }
  d.finalize("an operation of a graph");
  return keep(kept, std::move(d));
}

cudnnBackendDescriptor_t make_graph(const CudnnGraph& graph, cudnnHandle_t handle, Kept& kept) {
  constexpr std::int64_t first_inner_id = 1000;
  std::vector<cudnnBackendDescriptor_t> tensors, ops;
  for (const CudnnTensor& t : graph.tensors()) {
    const bool inner = t.kind == CudnnTensor::Kind::inner;
    tensors.push_back(make_tensor(t, inner ? first_inner_id + std::ssize(tensors) : t.id, kept));
  }
  for (const CudnnOp& op : graph.ops()) ops.push_back(make_op(op, tensors, kept));
  CudnnDescriptor d(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (handle) d.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  d.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ops.size(), ops.data());
  d.finalize("a graph");
  return keep(kept, std::move(d));
}

// Engines that may compute the graph, best first.
std::vector<cudnnBackendDescriptor_t> engines_for(cudnnBackendDescriptor_t graph, const std::string& device_properties,
                                                  Kept& kept) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (!device_properties.empty()) {
    CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, device_properties.size(),
               device_properties.data());
    device.finalize("the properties of a device");
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, keep(kept, std::move(device)));
  }
  heuristics.finalize("the choice of an engine");
  const auto results = [&](std::int64_t count, std::int64_t* found, void* configs) {
    check_cudnn(cudnn_api().get_attribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, count, found, configs),
                "the choice of an engine");
  };
  std::int64_t count = 0;
  results(0, &count, nullptr);
  std::vector<cudnnBackendDescriptor_t> engines;
  for (std::int64_t i = 0; i < count; ++i)
    engines.push_back(keep(kept, CudnnDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)));
  if (count > 0) results(count, &count, engines.data());
  engines.resize(static_cast<std::size_t>(count));
  return engines;
}

CudnnDescriptor make_plan(const CudnnGraph& graph, const CudnnTarget& target, const char* what, Kept& kept) {
  const cudnnBackendDescriptor_t operations = make_graph(graph, target.handle, kept);
  std::string why = "cuDNN offers no engine";
  for (const cudnnBackendDescriptor_t engine : engines_for(operations, target.device_properties, kept)) {
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    try {
      if (target.handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, engine);
      plan.finalize(what);
      return plan;
    } catch (const CudnnUnsupported& e) { why = e.what(); }
  }
  throw CudnnUnsupported(fmt::format("{}: {}", what, why));
}

}  // namespace

// ---- the list ----

int CudnnGraph::add(const CudnnTensor& tensor) {
  tensors_.push_back(tensor);
  return static_cast<int>(tensors_.size()) - 1;
}
int CudnnGraph::memory(std::int64_t id, cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides) {
  return add({CudnnTensor::Kind::memory, type, dims, strides, id});
}
int CudnnGraph::scalar(std::int64_t id) { return add({.kind = CudnnTensor::Kind::scalar, .id = id}); }
int CudnnGraph::inner(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides) {
  return add({CudnnTensor::Kind::inner, type, dims, strides, 0});
}
int CudnnGraph::inner(cudnnDataType_t type, const CudnnDims& dims) { return inner(type, dims, dense_strides(dims)); }

void CudnnGraph::add(CudnnOp::Kind kind, int mode, int x, int b, int y) {
  ops_.push_back({kind, mode, x, b, -1, y, -1});
}
void CudnnGraph::index_along(std::int64_t axis, int like, int y) {
  pointwise(CUDNN_POINTWISE_GEN_INDEX, like, y);
  ops_.back().axis = axis;
}
void CudnnGraph::select(int condition, int x, int other, int y) {
  pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, other, y);
  ops_.back().t = condition;
}

// ---- descriptors ----

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check_cudnn(cudnn_api().create_descriptor(type, &descriptor_), "creating a descriptor");
}
CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_) static_cast<void>(cudnn_api().destroy_descriptor(descriptor_));
}
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                          const void* values) {
  check_cudnn(cudnn_api().set_attribute(descriptor_, name, type, static_cast<std::int64_t>(count), values),
              "setting an attribute");
}
void CudnnDescriptor::finalize(const char* what) { check_cudnn(cudnn_api().finalize(descriptor_), what); }

// ---- plans ----

CudnnPlan::CudnnPlan(const CudnnGraph& graph, const CudnnTarget& target, const char* what)
    : plan_(make_plan(graph, target, what, kept_)) {
  std::int64_t count = 0;
  check_cudnn(cudnn_api().get_attribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                        &count, &workspace_bytes_),
              "the size of a plan's workspace");
}

void CudnnPlan::run(cudnnHandle_t handle, std::span<const CudnnArgument> arguments, void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<const void*> pointers;
  for (const CudnnArgument& a : arguments) {
    ids.push_back(a.id);
    pointers.push_back(a.pointer);
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.size(), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.size(), pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize("the arguments of a plan");
  check_cudnn(cudnn_api().execute(handle, plan_.get(), pack.get()), "running a plan");
}

}  // namespace sherd::cuda
