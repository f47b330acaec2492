#pragma once
// One op is one row, a constant (rows.h). Eager calls, autograd, sharding, capture, cost, tests and docs all read it;
// nothing else in the project lists ops by name. The table finds rows by name and holds their kernels.
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/op/attrs/attrs.h"
#include "runtime/op/core/algebra.h"
#include "runtime/op/core/meta_list.h"
#include "runtime/op/core/rows.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/small_vec.h"

namespace sherd {

struct Op;
class VjpCall;

using Tensors = SmallVec<Tensor, 2>;
using Metas = SmallVec<TensorMeta, 2>;

/// Properties of a row that other parts of the tree act on.
struct Traits {
  bool pointwise = false;    ///< out[i] depends on in[i] only; may write over a donated input like the result
  bool view = false;         ///< no kernel: infer gives shape, strides and offset of an alias of input 0
  bool linear = false;       ///< linear in each tensor input
  bool collective = false;   ///< communicates, or offloads; its kernel takes addresses without waiting, see Exec::queue
  bool same_shape = false;   ///< of collective rows: the result is as the input on every rank, and may take its memory
  bool issues = false;       ///< its kernel touches no bytes: it allocates, frees, or hands work to a queue
  bool effect = false;       ///< does something besides its outputs: never dropped, moved or differentiated
  bool waits = false;        ///< only waits for queues that use its inputs; has no other effect
  bool accumulates = false;  ///< the kernel honours KernelCall::accumulate
  bool any_strides = false;  ///< the kernel writes outputs of any strides; others write dense ones, or as infer says
  bool placement = false;    ///< changes the layout (redistribute, from_local): the dist layer runs it
  bool versions = false;     ///< the kernel gives what it writes its version
  bool local_extents = false;  ///< on distributed tensors it works on each rank's own elements (optimizer, norms)
};

/// Which inputs and outputs the vjp reads, as bit masks; kAll for lists. The tape keeps nothing else.
struct Needs {
  static constexpr std::uint32_t kAll = ~0u;
  std::uint32_t inputs = 0, outputs = 0;
  bool input(std::size_t i) const { return has(inputs, i); }
  bool output(std::size_t i) const { return has(outputs, i); }

 private:
  static bool has(std::uint32_t mask, std::size_t i) { return i < 31 ? (mask >> i) & 1u : mask == kAll; }
};

/// The inputs whose bytes a call makes present, or frees, as bit masks. It takes them as places: what it finds present,
/// or gone, it reads nothing of, and all that was in the bytes is gone after it. Of storages with an owner.
struct ResidencyChange {
  std::uint32_t restores = 0, releases = 0;
  bool (*applies)(AttrsView) = nullptr;  ///< to calls with these attributes; null: to all
  bool restores_input(std::size_t i, AttrsView attrs) const { return has(restores, i) && (!applies || applies(attrs)); }
  bool releases_input(std::size_t i, AttrsView attrs) const { return has(releases, i) && (!applies || applies(attrs)); }

 private:
  static bool has(std::uint32_t mask, std::size_t i) { return i < 32 && (mask >> i & 1) != 0; }
};

/// A mask for rows that take any of their inputs empty.
inline constexpr std::uint32_t kAnyInput = ~0u;

/// What infer, scratch and mutated see of a call: no bytes, no tape, nothing of the calling thread.
struct InferCall {
  const Op& op;
  MetaList in;
  AttrsView attrs;
};

class DeviceContext;

/// What a kernel may use besides its tensors. No thread-locals.
struct Exec {
  std::byte* scratch = nullptr;     ///< as many bytes as the row's scratch column asked for
  Queue* queue = nullptr;           ///< of collective rows: submits the work there and lends it all tensors
  DeviceContext* device = nullptr;  ///< queue, memory and handles of the device; null on the CPU
};

struct KernelCall {
  const Op& op;
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  AttrsView attrs;
  Exec exec;
  bool accumulate = false;  ///< add to what the outputs hold, after rounding to their dtype
};

using Infer = Metas (*)(const InferCall&);
using Kernel = void (*)(const KernelCall&);
using Vjp = void (*)(VjpCall&);
using Scratch = std::int64_t (*)(const InferCall&);
using Flops = double (*)(const InferCall&);

/// The queue that a call hands its work to. It lends that queue what it reads and writes, until a wait.
struct QueueUse {
  std::string_view name{};                                              ///< empty: none, it is done on return
  std::size_t max_in_flight = std::numeric_limits<std::size_t>::max();  ///< items there that may hold their bytes
  std::size_t items = 1;                                                ///< that the call submits
};
using QueueOf = QueueUse (*)(AttrsView);

/// What the backends supply for a row, by Device::Kind.
struct RowKernels {
  std::array<Kernel, kNumBackends> kernel{};
  std::array<Scratch, kNumBackends> scratch{};  ///< bytes; on a device kernels may take workspace themselves
};

/// The columns of a row. Rows are constants of static storage: `constinit const Op op::add{.name = "add", ...}`. They
/// are compared by address and never copied.
struct Op {
  std::string_view name;
  std::string_view doc{};             ///< one sentence, with shapes
  const AttrKind* attrs = nullptr;    ///< of the struct that its calls carry; null: none
  Infer infer = nullptr;              ///< shapes and dtypes out of shapes, dtypes and attributes; throws on wrong calls
  std::string_view dims{};            ///< "mk,kn->mn", see dims.h; empty if that language cannot describe the row
  int (*along)(AttrsView) = nullptr;  ///< the dim of "..." that must not be sharded, if the attributes name one
  Traits traits{};
  Algebra algebra = Algebra::none;  ///< what rows that have dims do with Partial inputs
  Needs needs{};
  Vjp vjp = nullptr;
  bool recompute = false;  ///< cheap, and the vjp reads all inputs: the tape keeps no copy of output 0, it runs again
  std::string_view no_gradient{};                  ///< why there is no vjp: "integer result", "effect"
  int (*mutated)(const InferCall&) = nullptr;      ///< how many of the first inputs the kernel writes in place
  MemoryCategory (*account)(AttrsView) = nullptr;  ///< which fresh outputs are charged to; null: activations
  Device (*device)(AttrsView) = nullptr;           ///< where outputs are made, if inputs do not say
  Flops flops = nullptr;                           ///< of a call, if op_cost() cannot count them by dims
  QueueOf queue = nullptr;                         ///< where the work goes; null: it is done on return
  ResidencyChange residency{};                     ///< the inputs whose bytes come or go
  std::uint32_t optional = 0;  ///< the inputs that a call may leave empty, as a bit mask; kAnyInput: all
  /// No column but a cache: the row's entry in the process's table, null until the row is added. See kernels_of().
  mutable std::atomic<const RowKernels*> kernels{nullptr};
};

/// The catalogue: rows by name, and their kernels. Rows are added, and backends fill their columns, while other
/// threads read it; nothing is ever changed or removed.
class OpTable {
 public:
  /// Error if one of the names is taken by another row.
  void add(std::initializer_list<const Op*> rows);
  /// Sets the kernel column of a row in this table, and the scratch column if the kernel needs one. A backend fills
  /// its column before the first tensor of its kind exists, and nobody reads it earlier.
  void kernel(const Op& row, Device::Kind backend, Kernel function, Scratch scratch = nullptr);
  /// The same of all backends, for a kernel that asks its queue or its device context. One of them may set its own
  /// after it.
  void kernel(const Op& row, Kernel function);
  /// The scratch column alone, if the family and not the kernel knows it.
  void scratch(const Op& row, Device::Kind backend, Scratch function);

  const Op& at(std::string_view name) const;       ///< throws Error suggesting the nearest name
  const RowKernels& kernels(const Op& row) const;  ///< throws Error naming the row if it is not in the table
  std::vector<const Op*> rows() const;             ///< in the order in which they were added

 private:
  struct Entry {
    const Op* row;
    RowKernels kernels{};
  };
  Entry* find(const Op& row) const;  // null if it is not in the table; the caller holds the lock

  mutable std::mutex mutex_;
  std::deque<Entry> entries_;  // stable addresses
  std::unordered_map<std::string_view, Entry*> by_name_;
};

/// The table of this process, with all rows of runtime/op and the kernels of the CPU. It is filled at the first call
/// of this function or the first call of a kernel.
const OpTable& op_table();
/// Row by name, for callers that have a text only; others name the constant.
inline const Op& find_op(std::string_view name) { return op_table().at(name); }

/// Adds rows of other layers, and their kernels, by `fill`. Runs once per function, however often and by whichever
/// thread it is called; threads may call ops meanwhile.
void add_rows(void (*fill)(OpTable& table));

/// The kernels of a row, for every call: the row itself points to its entry. A pointer and not an index into an array,
/// so that this is one load, rows are added without a limit, and no array moves while others read it. Acquire, which
/// is a plain load on x86, because a thread may see a row that another thread has just added. The first call of the
/// process fills the table. Throws Error naming a row that was never added.
inline const RowKernels& kernels_of(const Op& row) {
  if (const RowKernels* kernels = row.kernels.load(std::memory_order_acquire)) [[likely]]
    return *kernels;
  return op_table().kernels(row);
}

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
void register_exact_sum(OpTable& table);
void register_collective(OpTable& table);
void register_unit(OpTable& table);
void register_transfer(OpTable& table);
void register_wait(OpTable& table);
void register_cpu(OpTable& table);
/// All families' rows.
void register_families(OpTable& table);

class Backend;
/// Adds the kernels of a backend that has been opened, once, before its first tensor.
void add_kernels(const Backend& backend);

}  // namespace sherd
