#include "nn/checkpoint/full/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace sherd::ckpt {

namespace {

constexpr std::int64_t kPartBytes = 64 << 20;  // of each save

using TensorId = std::pair<std::string, std::string>;  // kind, name

std::set<TensorId> tensors_of(const CheckpointReader& save) {
  std::set<TensorId> tensors;
  for (const PieceEntry& piece : save.manifest().pieces) tensors.emplace(piece.kind, piece.name);
  return tensors;
}

std::string form_of(const PieceEntry& piece) { return fmt::format("{}{}", name(piece.dtype), piece.shape); }

// Parts of at most kPartBytes, but for rows that are longer.
void for_parts(const Shape& shape, std::int64_t element_bytes, const std::function<void(const Box&)>& use) {
  if (numel(shape) == 0) return;
  if (shape.empty()) return use(whole_box(shape));
  const std::int64_t row_bytes = numel(shape) / shape[0] * element_bytes;
  const std::int64_t rows = std::max<std::int64_t>(1, kPartBytes / row_bytes);
  for (std::int64_t row = 0; row < shape[0]; row += rows) use(rows_box(shape, row, std::min(rows, shape[0] - row)));
}

template <class T>
void count_differences(const std::vector<std::byte>& a, const std::vector<std::byte>& b, TensorDifference& found) {
  for (std::size_t at = 0; at < a.size(); at += sizeof(T)) {
    if (std::memcmp(a.data() + at, b.data() + at, sizeof(T)) == 0) continue;
    ++found.different;
    T x, y;
    std::memcpy(&x, a.data() + at, sizeof(T));
    std::memcpy(&y, b.data() + at, sizeof(T));
    const double distance = std::abs(convert<double>(x) - convert<double>(y));
    found.largest = std::max(found.largest, std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
  }
}

void compare_values(const CheckpointReader& first, const CheckpointReader& second, const PieceEntry& piece,
                    TensorDifference& found) {
  const auto size = byte_size(piece.dtype);
  std::vector<std::byte> a, b;
  for_parts(piece.shape, size, [&](const Box& part) {
    const auto bytes = static_cast<std::size_t>(numel(part) * size);
    a.resize(bytes);
    b.resize(bytes);
    first.read_box(piece.kind, piece.name, piece.dtype, piece.shape, part, a);
    second.read_box(piece.kind, piece.name, piece.dtype, piece.shape, part, b);
    if (a != b) visit_dtype(piece.dtype, [&]<class T>(Type<T>) { count_differences<T>(a, b, found); });
  });
  if (found.different > 0) found.likeness = Likeness::values;
}

}  // namespace

void compare_saves(const CheckpointReader& first, const CheckpointReader& second,
                   const std::function<void(const TensorDifference&)>& use) {
  std::set<TensorId> all = tensors_of(first);
  all.merge(tensors_of(second));
  for (const auto& [kind, name] : all) {
    TensorDifference found;
    found.kind = kind;
    found.name = name;
    if (!first.contains(kind, name) || !second.contains(kind, name)) {
      const CheckpointReader& has = first.contains(kind, name) ? first : second;
      found.likeness = &has == &first ? Likeness::only_first : Likeness::only_second;
      found.forms = form_of(has.describe(kind, name));
      use(found);
      continue;
    }
    const PieceEntry &a = first.describe(kind, name), &b = second.describe(kind, name);
    found.elements = numel(a.shape);
    found.forms = form_of(a);
    if (a.dtype == b.dtype && a.shape == b.shape) {
      compare_values(first, second, a, found);
    } else {
      found.likeness = Likeness::form;
      found.forms = fmt::format("{} and {}", form_of(a), form_of(b));
    }
    use(found);
  }
}

}  // namespace sherd::ckpt
