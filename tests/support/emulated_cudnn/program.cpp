#include "tests/support/emulated_cudnn/program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "runtime/cuda/device/device_emulated.h"
#include "runtime/tensor/dtype.h"

namespace sherd::cuda::emulated {

namespace {

constexpr auto kNone = static_cast<cudnnBackendAttributeName_t>(4095);  // no attribute has this number

struct Form {
  cudnnBackendDescriptorType_t kind;
  cudnnBackendAttributeName_t x, b, t, y, what, mode;
};
constexpr Form kForms[] = {
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     kNone, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_DESC, kNone},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kNone, kNone,
     CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_REDUCTION_OPERATOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kNone, kNone,
     CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kNone, kNone},
};

std::int64_t elements(const Dims& d) { return d[0] * d[1] * d[2] * d[3]; }

std::int64_t offset(const Dims& at, const Dims& strides) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < 4; ++i) sum += at[i] * strides[i];
  return sum;
}

template <class Fn>
void for_each(const Dims& dims, Fn fn) {
  Dims at{};
  for (at[0] = 0; at[0] < dims[0]; ++at[0])
    for (at[1] = 0; at[1] < dims[1]; ++at[1])
      for (at[2] = 0; at[2] < dims[2]; ++at[2])
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) fn(at);
}

template <class T>
float read_as(const void* p, std::int64_t at) {
  const T* element = static_cast<const T*>(p) + at;
  check_access("an input of a graph", element, sizeof(T));
  return static_cast<float>(*element);
}
template <class T>
void write_as(void* p, std::int64_t at, float value) {
  T* element = static_cast<T*>(p) + at;
  check_access("a result of a graph", element, sizeof(T));
  *element = static_cast<T>(value);
}

float rounded(float x, cudnnDataType_t type) {
  if (type == CUDNN_DATA_BFLOAT16) return static_cast<float>(bf16(x));
  if (type == CUDNN_DATA_HALF) return static_cast<float>(f16(x));
  return x;
}

// Values of a tensor in the order of its dims.
struct Values {
  const GraphTensor* tensor = nullptr;
  std::vector<float> data;

  // Dims of size 1 are repeated; fewer heads serve groups of them.
  float at(const Dims& index, const Dims& of) const {
    std::int64_t place = 0;
    for (std::size_t i = 0; i < 4; ++i) place = place * tensor->dims[i] + index[i] * tensor->dims[i] / of[i];
    return data[static_cast<std::size_t>(place)];
  }
};

class Execution {
 public:
  Execution(const std::map<std::int64_t, GraphTensor>& tensors, const std::map<std::int64_t, void*>& arguments,
            const std::map<std::int64_t, float>& scalars)
      : tensors_(tensors), arguments_(arguments), scalars_(scalars) {}

  void run(const GraphOp& op) {
    const auto& [x, b, t, y] = op.operands;
    Values result{&tensors_.at(y), {}};
    const Dims& dims = result.tensor->dims;
    result.data.reserve(static_cast<std::size_t>(elements(dims)));
    if (op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) matmul(load(x), load(b), result);
    else if (op.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) reduce(op.mode, load(x), result);
    else if (op.kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) reshape(load(x), result);
    else
      for_each(dims, [&, x = x, b = b, t = t](const Dims& at) {
        const float first = op.mode == CUDNN_POINTWISE_GEN_INDEX
                                ? static_cast<float>(at[static_cast<std::size_t>(op.axis)])
                                : load(x).at(at, dims);
        const float second = b ? load(b).at(at, dims) : 0.0f, third = t ? load(t).at(at, dims) : 0.0f;
        result.data.push_back(pointwise(op.mode, first, second, third));
      });
    for (float& value : result.data) value = rounded(value, result.tensor->type);
    store(y, std::move(result));
  }

 private:
  static float pointwise(int mode, float x, float b, float t) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD: return x + b;
      case CUDNN_POINTWISE_SUB: return x - b;
      case CUDNN_POINTWISE_MUL: return x * b;
      case CUDNN_POINTWISE_DIV: return x / b;
      case CUDNN_POINTWISE_EXP: return std::exp(x);
      case CUDNN_POINTWISE_LOG: return std::log(x);
      case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1.0f : 0.0f;
      case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
      case CUDNN_POINTWISE_GEN_INDEX:
      case CUDNN_POINTWISE_IDENTITY: return x;
      default: fault("pointwise mode %d is not emulated", mode);
    }
  }

  static void matmul(const Values& a, const Values& b, Values& result) {
    const Dims &of_a = a.tensor->dims, &of_b = b.tensor->dims, &dims = result.tensor->dims;
    // Row of the innermost two dims; fewer heads serve groups.
    const auto start = [&dims](const Dims& of, const Dims& at) {
      return ((at[0] * of[0] / dims[0]) * of[1] + at[1] * of[1] / dims[1]) * of[2] * of[3];
    };
    for_each(dims, [&](const Dims& at) {
      const float* x = a.data.data() + start(of_a, at) + at[2] * of_a[3];
      const float* y = b.data.data() + start(of_b, at) + at[3];
      float sum = 0;
      for (std::int64_t k = 0; k < of_a[3]; ++k) sum += x[k] * y[k * of_b[3]];
      result.data.push_back(sum);
    });
  }

  static void reduce(int mode, const Values& x, Values& result) {
    const bool largest = mode == CUDNN_REDUCE_TENSOR_MAX;
    result.data.assign(static_cast<std::size_t>(elements(result.tensor->dims)),
                       largest ? -std::numeric_limits<float>::infinity() : 0.0f);
    const Dims &from = x.tensor->dims, &to = result.tensor->dims;
    for_each(from, [&](const Dims& at) {
      std::int64_t place = 0;
      for (std::size_t i = 0; i < 4; ++i) place = place * to[i] + at[i] * to[i] / from[i];
      float& sum = result.data[static_cast<std::size_t>(place)];
      sum = largest ? std::max(sum, x.at(at, from)) : sum + x.at(at, from);
    });
  }

  // The same memory with other dims and strides.
  static void reshape(const Values& x, Values& result) {
    std::map<std::int64_t, float> memory;
    for_each(x.tensor->dims, [&](const Dims& at) { memory[offset(at, x.tensor->strides)] = x.at(at, x.tensor->dims); });
    for_each(result.tensor->dims,
             [&](const Dims& at) { result.data.push_back(memory.at(offset(at, result.tensor->strides))); });
  }

  const Values& load(std::int64_t id) {
    const auto found = values_.find(id);
    if (found != values_.end()) return found->second;
    Values v{&tensors_.at(id), {}};
    if (v.tensor->scalar) {
      v.data = {scalars_.at(id)};
    } else {
      const void* p = arguments_.at(id);
      for_each(v.tensor->dims, [&](const Dims& at) {
        const std::int64_t place = offset(at, v.tensor->strides);
        v.data.push_back(v.tensor->type == CUDNN_DATA_BFLOAT16 ? read_as<bf16>(p, place)
                         : v.tensor->type == CUDNN_DATA_HALF   ? read_as<f16>(p, place)
                                                               : read_as<float>(p, place));
      });
    }
    return values_[id] = std::move(v);
  }

  void store(std::int64_t id, Values v) {
    if (!v.tensor->inner) {
      void* p = arguments_.at(id);
      std::size_t i = 0;
      for_each(v.tensor->dims, [&](const Dims& at) {
        const std::int64_t place = offset(at, v.tensor->strides);
        const float value = v.data[i++];
        if (v.tensor->type == CUDNN_DATA_BFLOAT16) write_as<bf16>(p, place, value);
        else if (v.tensor->type == CUDNN_DATA_HALF) write_as<f16>(p, place, value);
        else write_as<float>(p, place, value);
      });
    }
    values_[id] = std::move(v);
  }

  const std::map<std::int64_t, GraphTensor>& tensors_;
  const std::map<std::int64_t, void*>& arguments_;
  const std::map<std::int64_t, float>& scalars_;
  std::map<std::int64_t, Values> values_;
};

}  // namespace

std::string Program::read(const Descriptor& graph) {
  const auto add = [this](const Descriptor& d) {
    GraphTensor t;
    t.type = d.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    const auto dims = d.list<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto strides = d.list<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    if (dims.size() != 4 || strides.size() != 4) return std::int64_t{0};
    std::copy(dims.begin(), dims.end(), t.dims.begin());
    std::copy(strides.begin(), strides.end(), t.strides.begin());
    t.inner = d.value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    t.scalar = d.value<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    const auto id = d.value<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    tensors_[id] = t;
    return id;
  };
  for (cudnnBackendDescriptor_t handle : graph.list<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const auto& d = *static_cast<const Descriptor*>(handle);
    const Form* form =
        std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& f) { return f.kind == d.type; });
    if (form == std::end(kForms)) return "an operation that is not emulated";
    GraphOp op{.kind = d.type};
    const cudnnBackendAttributeName_t names[] = {form->x, form->b, form->t, form->y};
    for (std::size_t i = 0; i < 4; ++i)
      if (names[i] != kNone && d.has(names[i])) op.operands[i] = add(*d.descriptor(names[i]));
    if (op.operands[0] == 0 || op.operands[3] == 0) return "an operation without its tensors";
    if (form->mode != kNone) op.mode = d.descriptor(form->what)->value<int>(form->mode);
    if (form->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      op.axis = d.descriptor(form->what)->value<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
    ops_.push_back(op);
  }
  return ops_.empty() ? "a graph without operations" : "";
}

std::vector<std::int64_t> Program::ids() const {
  std::vector<std::int64_t> ids;
  for (const auto& [id, tensor] : tensors_)
    if (!tensor.inner) ids.push_back(id);
  return ids;
}

std::vector<const void*> Program::device_pointers(const std::map<std::int64_t, void*>& arguments) const {
  std::vector<const void*> pointers;
  for (const auto& [id, tensor] : tensors_)
    if (!tensor.inner && !tensor.scalar) pointers.push_back(arguments.at(id));
  return pointers;
}

std::function<void()> Program::bind(const std::map<std::int64_t, void*>& arguments) const {
  std::map<std::int64_t, float> scalars;
  for (const auto& [id, tensor] : tensors_)
    if (tensor.scalar) scalars[id] = *static_cast<const float*>(arguments.at(id));
  return [program = *this, arguments, scalars] {
    Execution execution(program.tensors_, arguments, scalars);
    for (const GraphOp& op : program.ops_) execution.run(op);
  };
}

}  // namespace sherd::cuda::emulated
