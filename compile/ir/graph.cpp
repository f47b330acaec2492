#include "compile/ir/graph.h"

namespace sherd {

std::pair<std::int64_t, std::int64_t> TensorRef::extent() const {
  const std::int64_t size = byte_size(dtype);
  std::int64_t first = offset, last = offset;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {offset * size, offset * size};
    (strides[i] < 0 ? first : last) += (shape[i] - 1) * strides[i];
  }
  return {first * size, (last + 1) * size};
}

TensorRef reference(const Tensor& tensor, ValueId value, std::int64_t base_bytes) {
  return {value, tensor.dtype(), tensor.shape(), tensor.strides(),
          tensor.offset() - base_bytes / byte_size(tensor.dtype())};
}

bool is_sole_owner(const Tensor& tensor) {
  const TensorImpl& local = tensor.is_distributed() ? *tensor.impl()->local : *tensor.impl();
  return tensor.impl()->use_count() == 1 && local.use_count() == 1 && local.storage && local.storage->use_count() == 1;
}

void compute_lifetimes(Graph& graph) {
  constexpr int kNever = -1, kKept = -2;
  std::vector<int> last(graph.values.size(), kNever);
  const auto touch = [&](const TensorRef& ref, int when) {
    if (ref.defined()) last[static_cast<std::size_t>(ref.value)] = when;
  };
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    GraphNode& node = graph.nodes[i];
    node.frees.clear();
    for (const TensorRef& ref : node.in) touch(ref, static_cast<int>(i));
    for (const TensorRef& ref : node.out) touch(ref, static_cast<int>(i));
  }
  for (const GraphResult& result : graph.results) touch(result.local, kKept);
  for (const SlotUpdate& update : graph.updates) touch(update.result.local, kKept);
  for (std::size_t v = 0; v < last.size(); ++v)
    if (graph.values[v].kind == ValueKind::temporary && last[v] >= 0)
      graph.nodes[static_cast<std::size_t>(last[v])].frees.push_back(static_cast<ValueId>(v));
}

}  // namespace sherd
