#pragma once
// The attribute structs of all op families: what a call carries besides tensors. See op/attrs.h for the rules.
#include "runtime/op/attrs.h"
#include "runtime/tensor/device.h"

namespace sherd {

class ProcessGroup;

struct DimAttrs {  ///< softmax, cat, ...
  int dim = 0;
  static constexpr AttrField fields[] = {attr<&DimAttrs::dim>("dim")};
};
struct ReduceAttrs {  ///< sum, mean, max, ...: bit d of `dims` set = reduce dim d
  std::uint64_t dims = 0;
  bool keep_dims = false;
  static constexpr AttrField fields[] = {attr<&ReduceAttrs::dims>("dims"), attr<&ReduceAttrs::keep_dims>("keep")};
};
struct SumToAttrs {
  Shape shape;
  static constexpr AttrField fields[] = {attr<&SumToAttrs::shape>("shape")};
};
struct ScalarAttrs {  ///< a constant operand: add_scalar, mul_scalar, pow_scalar, ...
  double value = 0;
  static constexpr AttrField fields[] = {attr<&ScalarAttrs::value>("value").local()};
};
struct ClampAttrs {
  double low = 0, high = 0;
  static constexpr AttrField fields[] = {attr<&ClampAttrs::low>("low"), attr<&ClampAttrs::high>("high")};
};
struct CastAttrs {
  DType dtype = DType::f32;
  static constexpr AttrField fields[] = {attr<&CastAttrs::dtype>("dtype")};
};
struct ShapeAttrs {  ///< view (reshape), expand
  Shape shape;
  static constexpr AttrField fields[] = {attr<&ShapeAttrs::shape>("shape")};
};
struct PermuteAttrs {
  Dims order;
  static constexpr AttrField fields[] = {attr<&PermuteAttrs::order>("order")};
};
struct NarrowAttrs {  ///< elements start, start+step, ... of one dim
  int dim = 0;
  std::int64_t start = 0, length = 0;
  static constexpr AttrField fields[] = {attr<&NarrowAttrs::dim>("dim"), attr<&NarrowAttrs::start>("start").local(),
                                         attr<&NarrowAttrs::length>("length").local()};
};
/// narrow_backward: the gradient of a slice, zero elsewhere.
struct PadToAttrs {
  int dim = 0;
  std::int64_t start = 0, size = 0;  ///< position of the slice and size of the whole dim
  static constexpr AttrField fields[] = {attr<&PadToAttrs::dim>("dim"), attr<&PadToAttrs::start>("start").local(),
                                         attr<&PadToAttrs::size>("size").local()};
};
struct TransferAttrs {  ///< to_device
  Device device;
  static constexpr AttrField fields[] = {attr<&TransferAttrs::device>("device")};
};
struct FullAttrs {
  Shape shape;
  double value = 0;
  DType dtype = DType::f32;
  Device device{};
  static constexpr AttrField fields[] = {attr<&FullAttrs::shape>("shape"), attr<&FullAttrs::value>("value"),
                                         attr<&FullAttrs::dtype>("dtype"),
                                         attr<&FullAttrs::device>("device").optional()};
};
struct ArangeAttrs {
  std::int64_t count = 0;
  DType dtype = DType::i64;
  Device device{};
  static constexpr AttrField fields[] = {attr<&ArangeAttrs::count>("count"), attr<&ArangeAttrs::dtype>("dtype"),
                                         attr<&ArangeAttrs::device>("device").optional()};
};
/// Where the elements of a part lie among those of the whole, both row-major: runs of `run` elements, `count` runs
/// `stride` apart, and that again every `outer_stride`. Element i of the part is element
/// first + i / run / count * outer_stride + i / run % count * stride + i % run of the whole, `first` being a field of
/// the attributes. run = 0: the part is one run.
struct ElementRuns {
  std::int64_t run = 0, count = 1, stride = 0, outer_stride = 0;
  static constexpr AttrField fields[] = {
      attr<&ElementRuns::run>("run").local(), attr<&ElementRuns::count>("count").local(),
      attr<&ElementRuns::stride>("stride").local(), attr<&ElementRuns::outer_stride>("outer").local()};
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
  static constexpr AttrField fields[] = {attr<&RandomAttrs::shape>("shape"),
                                         attr<&RandomAttrs::dtype>("dtype"),
                                         attr<&RandomAttrs::key>("key"),
                                         attr<&RandomAttrs::first>("first").local(),
                                         attr<&RandomAttrs::a>("a"),
                                         attr<&RandomAttrs::b>("b"),
                                         attr<&RandomAttrs::device>("device").optional(),
                                         attr<&RandomAttrs::runs>().optional()};
};
struct DropoutAttrs {
  float p = 0;
  std::uint64_t key = 0;
  std::int64_t first = 0;  ///< global index of the first element (data coordinate x local elements)
  ElementRuns runs{};
  static constexpr AttrField fields[] = {attr<&DropoutAttrs::p>("p"), attr<&DropoutAttrs::key>("key"),
                                         attr<&DropoutAttrs::first>("first").local(),
                                         attr<&DropoutAttrs::runs>().optional()};
};
struct NormAttrs {
  double eps = 1e-5;
  static constexpr AttrField fields[] = {attr<&NormAttrs::eps>("eps")};
};
struct AttentionAttrs {
  double scale = 1;
  bool causal = true;
  static constexpr AttrField fields[] = {attr<&AttentionAttrs::scale>("scale"),
                                         attr<&AttentionAttrs::causal>("causal")};
};
struct RopeAttrs {
  double theta = 10000;
  std::int64_t first_position = 0;
  bool inverse = false;  ///< rotates back: the vjp
  static constexpr AttrField fields[] = {attr<&RopeAttrs::theta>("theta"),
                                         attr<&RopeAttrs::first_position>("first").local(),
                                         attr<&RopeAttrs::inverse>("inverse")};
};
/// Which part of a vocabulary (rows of a table, columns of logits) a call sees: ids outside it belong to other ranks
/// and count as absent here. total = 0: all of it.
struct VocabularyPart {
  std::int64_t first = 0, total = 0;
  static constexpr AttrField fields[] = {attr<&VocabularyPart::first>("first_id").local(),
                                         attr<&VocabularyPart::total>("total_ids")};
};
struct CrossEntropyAttrs {
  std::int64_t ignore_index = -100;
  VocabularyPart part{};
  static constexpr AttrField fields[] = {attr<&CrossEntropyAttrs::ignore_index>("ignore"),
                                         attr<&CrossEntropyAttrs::part>().optional()};
};
struct EmbeddingAttrs {
  std::int64_t rows = 0;  ///< embedding_backward: rows of the table, or of the part of it
  VocabularyPart part{};
  static constexpr AttrField fields[] = {attr<&EmbeddingAttrs::rows>("rows").local().optional(),
                                         attr<&EmbeddingAttrs::part>().optional()};
};
/// adamw over lists: inputs are n parameters, n first moments, n second moments, n gradients, then the 0-d f32
/// tensors lr, step (f32, counted from 1) and scale (gradients are multiplied by it; clipping).
struct AdamWAttrs {
  int count = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  static constexpr AttrField fields[] = {attr<&AdamWAttrs::count>("count"), attr<&AdamWAttrs::beta1>("beta1"),
                                         attr<&AdamWAttrs::beta2>("beta2"), attr<&AdamWAttrs::eps>("eps"),
                                         attr<&AdamWAttrs::weight_decay>("weight_decay")};
};
/// sgd over lists: n parameters, n momentum buffers (0 when momentum == 0), n gradients, lr, scale.
struct SgdAttrs {
  int count = 0;
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
  static constexpr AttrField fields[] = {attr<&SgdAttrs::count>("count"), attr<&SgdAttrs::momentum>("momentum"),
                                         attr<&SgdAttrs::weight_decay>("weight_decay"),
                                         attr<&SgdAttrs::nesterov>("nesterov")};
};
/// Elements of one partial sum of power_sum; partials combine in index order.
inline constexpr std::int64_t kPowerSumBlock = 8192;
struct PowerSumAttrs {  ///< sum of |x|^p over a list; p = infinity takes the maximum
  double p = 2;
  static constexpr AttrField fields[] = {attr<&PowerSumAttrs::p>("p")};
};
/// Written as its name; reading asks AttrNames for the group of that name.
template <>
struct AttrValue<ProcessGroup*> : AttrIdentity<ProcessGroup*> {
  static void print(ProcessGroup* const& group, AttrWriter& out);
  static void read(ProcessGroup*& group, AttrReader& in);
};

struct CollectiveAttrs {  ///< the group outlives what is captured with it
  ProcessGroup* group = nullptr;
  int kind = 0;           ///< ReduceKind of reductions
  int root = 0;           ///< broadcast
  std::int64_t rows = 0;  ///< all_gather, all_to_all: size of `dim` in the result; of a part that another axis has cut
  int dim = 0;            ///< all_gather, all_to_all: joined; reduce_scatter: cut
  int split_dim = 0;      ///< all_to_all: cut
  static constexpr AttrField fields[] = {attr<&CollectiveAttrs::group>("group").optional(),
                                         attr<&CollectiveAttrs::kind>("kind"),
                                         attr<&CollectiveAttrs::root>("root"),
                                         attr<&CollectiveAttrs::rows>("rows").local(),
                                         attr<&CollectiveAttrs::dim>("dim"),
                                         attr<&CollectiveAttrs::split_dim>("split")};
};

}  // namespace sherd
