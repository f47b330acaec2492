// Ranks all_gather a row of integers each (shapes, dtype, hash); then every rank checks all rows by the same rules, so
// that either all raise or none does. A ghost rank issues the same rows and compares nothing.
#include "dtensor/check_parts.h"

#include <array>

#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

enum Field : int { kProblem, kDtype, kNdim, kShape, kLocal = kShape + kMaxDims, kHash = kLocal + kMaxDims, kFields };
using PartFacts = std::span<const std::int64_t>;

std::int64_t hash_of(const Tensor& t) {
  if (t.is_meta()) return 0;
  const Tensor dense = contiguous(to(t, Device::cpu()));
  if (dense.is_ghost()) {
    dense.storage()->wait_to_read();
    return 0;
  }
  const auto* bytes = static_cast<const char*>(dense.numel() ? dense.raw() : nullptr);
  return static_cast<std::int64_t>(fnv1a({bytes, static_cast<std::size_t>(dense.bytes())}));
}

Tensor facts_of(const Tensor& local, const Shape& shape, bool problem) {
  std::array<std::int64_t, kFields> facts{};
  facts[kProblem] = problem;
  facts[kDtype] = static_cast<std::int64_t>(local.dtype());
  facts[kNdim] = local.ndim();
  for (const int d : indices(shape)) facts[static_cast<std::size_t>(kShape + d)] = shape[d];
  for (const int d : up_to(local.ndim())) facts[static_cast<std::size_t>(kLocal + d)] = local.size(d);
  facts[kHash] = hash_of(local);
  return Tensor::from<std::int64_t>(facts, {1, kFields});
}

// A row per rank, row-major in the mesh: along the fastest axis first. Not every mesh has a group of all its ranks.
Tensor gather_facts(Tensor facts, const DeviceMesh& mesh) {
  for (int a = mesh.ndim() - 1; a >= 0; --a)
    if (mesh.size(a) > 1) facts = all_gather(facts, mesh.group(a), facts.size(0) * mesh.size(a));
  return facts;
}

Shape dims_at(PartFacts facts, int field) {
  Shape shape;
  for (const int d : up_to(static_cast<int>(facts[kNdim]))) shape.push_back(facts[static_cast<std::size_t>(field + d)]);
  return shape;
}

std::string text_of(PartFacts facts, int field) {
  return fmt::format("{}{}", name(static_cast<DType>(facts[kDtype])), dims_at(facts, field));
}

// The first rank with a replica of the same shard.
int first_copy(std::vector<int> at, const Spec& spec) {
  int rank = 0;
  for (const int a : up_to(spec.num_axes()))
    rank = rank * spec.axis_size(a) + (spec.placement(a).is_replicate() ? 0 : at[static_cast<std::size_t>(a)]);
  return rank;
}

}  // namespace

void check_parts(std::string_view what, const Tensor& local, const Shape& shape, const Spec* spec,
                 std::string_view problem) {
  const GradMode off(false);
  const DeviceMesh mesh = spec->mesh();
  const Tensor gathered = gather_facts(facts_of(local.detach(), shape, !problem.empty()), mesh);
  if (gathered.is_ghost()) {
    gathered.storage()->wait_to_read();
    if (!problem.empty()) fail("{}", problem);
    return;
  }
  const std::vector<std::int64_t> all = gathered.to_vector<std::int64_t>();
  const int num_ranks = mesh.num_ranks();
  const auto facts = [&](int rank) {
    return PartFacts(all).subspan(static_cast<std::size_t>(rank) * kFields, kFields);
  };
  if (!problem.empty()) fail("{}", problem);
  for (const int r : up_to(num_ranks))
    check(facts(r)[kProblem] == 0, "{}: rank {} of {} cannot take part: its part {} does not fit {}", what, r,
          mesh.describe(), text_of(facts(r), kLocal), spec->describe());
  const PartFacts first = facts(0);
  for (const int r : Numbers<int>(1, num_ranks))
    check(facts(r)[kDtype] == first[kDtype] && dims_at(facts(r), kShape) == dims_at(first, kShape),
          "{}: the ranks of {} do not make one tensor {}: rank 0 has the part {} of {}, rank {} the part {} of {}",
          what, mesh.describe(), spec->describe(), text_of(first, kLocal), text_of(first, kShape), r,
          text_of(facts(r), kLocal), text_of(facts(r), kShape));
  for (const int r : up_to(num_ranks)) {
    const std::vector<int> at = mesh.coordinates_of(r);
    for (const int d : indices(shape)) {
      const std::int64_t due = spec->range_at(d, shape[d], at).size();
      check(dims_at(facts(r), kLocal)[d] == due, "{}: dim {} of rank {}'s part {} of {} {} should be {}", what, d, r,
            text_of(facts(r), kLocal), shape, spec->describe(), due);
    }
    const int copy = first_copy(at, *spec);
    check(facts(r)[kHash] == facts(copy)[kHash],
          "{}: ranks {} and {} of {} should hold the same part of {}{}, and their values differ", what, copy, r,
          mesh.describe(), text_of(first, kShape), spec->describe());
  }
}

}  // namespace sherd
