#pragma once
// The attribute structs of all op families: what a call carries besides tensors. See op/attrs.h for the rules.
#include "runtime/op/attrs.h"
#include "runtime/tensor/device.h"

namespace sherd {

class ProcessGroup;

struct DimAttrs {  ///< softmax, cat, ...
  int dim = 0;
  void visit(AttrVisitor& v) const { v.field("dim", dim); }
};
struct ReduceAttrs {  ///< sum, mean, max, ...: bit d of `dims` set = reduce dim d
  std::uint64_t dims = 0;
  bool keep_dims = false;
  void visit(AttrVisitor& v) const {
    v.field("dims", dims);
    v.field("keep", keep_dims);
  }
};
struct SumToAttrs {
  Shape shape;
  void visit(AttrVisitor& v) const { v.field("shape", shape); }
};
struct ScalarAttrs {  ///< a constant operand: add_scalar, mul_scalar, pow_scalar, ...
  double value = 0;
  void visit(AttrVisitor& v) const { v.local_field("value", value); }
};
struct ClampAttrs {
  double low = 0, high = 0;
  void visit(AttrVisitor& v) const {
    v.field("low", low);
    v.field("high", high);
  }
};
struct CastAttrs {
  DType dtype = DType::f32;
  void visit(AttrVisitor& v) const { v.field("dtype", dtype); }
};
struct ShapeAttrs {  ///< view (reshape), expand
  Shape shape;
  void visit(AttrVisitor& v) const { v.field("shape", shape); }
};
struct PermuteAttrs {
  Dims order;
  void visit(AttrVisitor& v) const { v.field("order", order); }
};
struct NarrowAttrs {  ///< elements start, start+step, ... of one dim
  int dim = 0;
  std::int64_t start = 0, length = 0;
  void visit(AttrVisitor& v) const {
    v.field("dim", dim);
    v.local_field("start", start);
    v.local_field("length", length);
  }
};
/// narrow_backward: the gradient of a slice, zero elsewhere.
struct PadToAttrs {
  int dim = 0;
  std::int64_t start = 0, size = 0;  ///< position of the slice and size of the whole dim
  void visit(AttrVisitor& v) const {
    v.field("dim", dim);
    v.local_field("start", start);
    v.local_field("size", size);
  }
};
/// Devices print without their index, which differs between ranks that run one program.
inline const char* kind_name(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : device.is_meta() ? "meta" : "cuda";
}
struct TransferAttrs {  ///< to_device
  Device device;
  void visit(AttrVisitor& v) const {
    v.field("device", kind_name(device));
    if (device.kind == Device::Kind::cuda) v.local_field("index", static_cast<std::int64_t>(device.index));
  }
};
struct FullAttrs {
  Shape shape;
  double value = 0;
  DType dtype = DType::f32;
  Device device{};
  void visit(AttrVisitor& v) const {
    v.field("shape", shape);
    v.field("value", value);
    v.field("dtype", dtype);
    if (device != Device::cpu()) v.field("device", kind_name(device));
  }
};
struct ArangeAttrs {
  std::int64_t count = 0;
  DType dtype = DType::i64;
  Device device{};
  void visit(AttrVisitor& v) const {
    v.field("count", count);
    v.field("dtype", dtype);
    if (device != Device::cpu()) v.field("device", kind_name(device));
  }
};
/// Where the elements of a part lie among those of the whole, both row-major: runs of `run` elements, `count` runs
/// `stride` apart, and that again every `outer_stride`. Element i of the part is element
/// first + i / run / count * outer_stride + i / run % count * stride + i % run of the whole, `first` being a field of
/// the attributes. run = 0: the part is one run.
struct ElementRuns {
  std::int64_t run = 0, count = 1, stride = 0, outer_stride = 0;
  void visit(AttrVisitor& v) const {
    if (run == 0) return;
    v.local_field("run", run);
    v.local_field("count", count);
    v.local_field("stride", stride);
    v.local_field("outer", outer_stride);
  }
};
/// Random rows: `key` hashes (seed, module path or parameter name, purpose, call index); element i of the result is
/// drawn for global element first + i. The optional 0-d i64 tensor input is the step and goes into the counter.
struct RandomAttrs {
  Shape shape;
  DType dtype = DType::f32;
  std::uint64_t key = 0;
  std::int64_t first = 0;
  float a = 0, b = 1;  ///< normal: mean, std; uniform: low, high
  Device device{};
  ElementRuns runs{};
  void visit(AttrVisitor& v) const {
    v.field("shape", shape);
    v.field("dtype", dtype);
    v.field("key", key);
    v.local_field("first", first);
    v.field("a", static_cast<double>(a));
    v.field("b", static_cast<double>(b));
    if (device != Device::cpu()) v.field("device", kind_name(device));
    runs.visit(v);
  }
};
struct DropoutAttrs {
  float p = 0;
  std::uint64_t key = 0;
  std::int64_t first = 0;  ///< global index of the first element (data coordinate x local elements)
  ElementRuns runs{};
  void visit(AttrVisitor& v) const {
    v.field("p", static_cast<double>(p));
    v.field("key", key);
    v.local_field("first", first);
    runs.visit(v);
  }
};
struct NormAttrs {
  double eps = 1e-5;
  void visit(AttrVisitor& v) const { v.field("eps", eps); }
};
struct AttentionAttrs {
  double scale = 1;
  bool causal = true;
  void visit(AttrVisitor& v) const {
    v.field("scale", scale);
    v.field("causal", causal);
  }
};
struct RopeAttrs {
  double theta = 10000;
  std::int64_t first_position = 0;
  bool inverse = false;  ///< rotates back: the vjp
  void visit(AttrVisitor& v) const {
    v.field("theta", theta);
    v.local_field("first", first_position);  // of a part of a sequence
    v.field("inverse", inverse);
  }
};
/// Which part of a vocabulary (rows of a table, columns of logits) a call sees: ids outside it belong to other ranks
/// and count as absent here. total = 0: all of it.
struct VocabularyPart {
  std::int64_t first = 0, total = 0;
  void visit(AttrVisitor& v) const {
    if (total == 0) return;
    v.local_field("first_id", first);
    v.field("total_ids", total);
  }
};
struct CrossEntropyAttrs {
  std::int64_t ignore_index = -100;
  VocabularyPart part{};
  void visit(AttrVisitor& v) const {
    v.field("ignore", ignore_index);
    part.visit(v);
  }
};
struct EmbeddingAttrs {
  std::int64_t rows = 0;  ///< embedding_backward: rows of the table, or of the part of it
  VocabularyPart part{};
  void visit(AttrVisitor& v) const {
    if (rows != 0) v.local_field("rows", rows);
    part.visit(v);
  }
};
/// adamw over lists: inputs are n parameters, n first moments, n second moments, n gradients, then the 0-d f32
/// tensors lr, step (f32, counted from 1) and scale (gradients are multiplied by it; clipping).
struct AdamWAttrs {
  int count = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  void visit(AttrVisitor& v) const {
    v.field("count", count);
    v.field("beta1", beta1);
    v.field("beta2", beta2);
    v.field("eps", eps);
    v.field("weight_decay", weight_decay);
  }
};
/// sgd over lists: n parameters, n momentum buffers (0 when momentum == 0), n gradients, lr, scale.
struct SgdAttrs {
  int count = 0;
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
  void visit(AttrVisitor& v) const {
    v.field("count", count);
    v.field("momentum", momentum);
    v.field("weight_decay", weight_decay);
    v.field("nesterov", nesterov);
  }
};
/// Elements of one partial sum of power_sum; partials combine in index order.
inline constexpr std::int64_t kPowerSumBlock = 8192;
struct PowerSumAttrs {  ///< sum of |x|^p over a list; p = infinity takes the maximum
  double p = 2;
  void visit(AttrVisitor& v) const { v.field("p", p); }
};
struct CollectiveAttrs {  ///< the group outlives what is captured with it
  ProcessGroup* group = nullptr;
  int kind = 0;           ///< ReduceKind of reductions
  int root = 0;           ///< broadcast
  std::int64_t rows = 0;  ///< all_gather, all_to_all: size of `dim` in the result
  int dim = 0;            ///< all_gather, all_to_all: joined; reduce_scatter: cut
  int split_dim = 0;      ///< all_to_all: cut
  void visit(AttrVisitor& v) const;
};

}  // namespace sherd
