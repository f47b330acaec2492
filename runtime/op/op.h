#pragma once
// One op is one row. Eager calls, autograd, sharding, capture, cost, tests and docs all read it; nothing else in
// the project lists ops by name.
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <unordered_map>

#include "runtime/op/attrs.h"
#include "runtime/op/meta_list.h"
#include "runtime/op/tensor.h"
#include "runtime/tensor/small_vec.h"

namespace sherd {

struct Op;
class VjpCall;

using Tensors = SmallVec<Tensor, 2>;
using Metas = SmallVec<TensorMeta, 2>;

/// Facts about a row that others act on.
struct Traits {
  bool pointwise = false;  ///< out[i] depends on in[i] only; may write over a donated input of its dtype and shape
  bool view = false;       ///< no kernel: infer gives shape, strides and offset of an alias of input 0
  bool reduction = false;
  bool linear = false;  ///< linear in each tensor input
  bool random = false;
  bool collective = false;     ///< communicates; its kernel takes no address that waits, see Exec::queue
  bool effect = false;         ///< does something besides its outputs: never dropped, moved or differentiated
  bool accumulates = false;    ///< the kernel honours KernelCall::accumulate
  bool placement = false;      ///< changes where a tensor lies (redistribute, from_local): the dist layer runs it
  bool local_extents = false;  ///< on distributed tensors it works on each rank's own elements (optimizer, norms)
};

/// Which inputs and outputs the vjp reads, as bit masks; kAll for lists. The tape keeps nothing else.
struct Needs {
  static constexpr std::uint32_t kAll = ~0u;
  std::uint32_t inputs = 0, outputs = 0;
};

/// What infer, scratch and mutated see of a call: no bytes, no history, nothing of the thread that makes it.
struct InferCall {
  const Op& op;
  MetaList in;
  const Attrs& attrs;
};

class DeviceContext;

/// What a kernel may use besides its tensors. No thread-locals.
struct Exec {
  std::byte* scratch = nullptr;     ///< as many bytes as the row's scratch column asked for
  Queue* queue = nullptr;           ///< of collective rows: submits the work there, with all tensors on loan
  DeviceContext* device = nullptr;  ///< queue, memory and handles of the device; null on the CPU
};

struct KernelCall {
  const Op& op;
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  const Attrs& attrs;
  Exec exec;
  bool accumulate = false;  ///< add to what the outputs hold, after rounding to their dtype
};

using Infer = Metas (*)(const InferCall&);
using Kernel = void (*)(const KernelCall&);
using Vjp = void (*)(VjpCall&);
using Recompute = Tensor (*)(const VjpCall&);
using Scratch = std::int64_t (*)(const InferCall&);

struct Op {
  std::string_view name;
  std::string_view doc{};   ///< one sentence, with shapes
  Infer infer = nullptr;    ///< shapes and dtypes out of shapes, dtypes and attributes; throws on wrong calls
  std::string_view dims{};  ///< "mk,kn->mn"; "..." = any leading dims; empty where an einsum cannot say it
  Traits traits{};
  Needs needs{};
  std::array<Scratch, kNumBackends> scratch{};  ///< by Device::Kind; on a device kernels may take workspace themselves
  Vjp vjp = nullptr;
  Recompute recompute =
      nullptr;  ///< output 0 once more, the same bits, from what the vjp reads: the tape keeps no copy
  std::string_view no_gradient{};                         ///< why there is no vjp: "integer result", "effect"
  int (*mutated)(const InferCall&) = nullptr;             ///< how many of the first inputs the kernel writes in place
  MemoryCategory category = MemoryCategory::activations;  ///< account of fresh outputs
  Device (*device)(const Attrs&) = nullptr;               ///< where outputs are made, if inputs do not say
  std::array<Kernel, kNumBackends> kernel{};              ///< by Device::Kind
};

/// The catalogue. Filled once, explicitly, before main's first op; immutable afterwards.
class OpTable {
 public:
  void add(Op row);
  /// Sets the kernel column of an existing row, and the scratch column where it is the kernel that knows. A backend
  /// fills its column before the first tensor of its kind exists, and nobody reads it earlier.
  void kernel(std::string_view name, Device::Kind backend, Kernel function, Scratch scratch = nullptr);
  const Op& at(std::string_view name) const;  ///< throws Error naming the nearest row
  const std::deque<Op>& rows() const { return rows_; }

 private:
  std::deque<Op> rows_;  // stable addresses
  std::unordered_map<std::string_view, Op*> by_name_;
};

const OpTable& op_table();
/// Row by name, for the user functions: `static const Op& op = find_op("add");`
inline const Op& find_op(std::string_view name) { return op_table().at(name); }

// Each family registers its rows; runtime/cpu registers the kernels.
void register_pointwise(OpTable& table);
void register_reduce(OpTable& table);
void register_matmul(OpTable& table);
void register_view(OpTable& table);
void register_index(OpTable& table);
void register_norm(OpTable& table);
void register_attention(OpTable& table);
void register_loss(OpTable& table);
void register_random(OpTable& table);
void register_create(OpTable& table);
void register_optimizer(OpTable& table);
void register_collective(OpTable& table);
void register_transfer(OpTable& table);
void register_cpu(OpTable& table);

class Backend;
/// Adds the kernels of a backend that has been opened, once, before its first tensor.
void add_kernels(const Backend& backend);

}  // namespace sherd
