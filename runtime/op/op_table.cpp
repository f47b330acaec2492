#include "runtime/op/op.h"

#include "runtime/exec/backend.h"

#include <algorithm>
#include <vector>

namespace sherd {

namespace {
// Letters that differ at best alignment; enough to suggest a spelling.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row.back();
}
}  // namespace

void OpTable::add(Op row) {
  check(!by_name_.contains(row.name), "op \"{}\" is registered twice", row.name);
  rows_.push_back(row);
  by_name_[rows_.back().name] = &rows_.back();
}

void OpTable::kernel(std::string_view name, Device::Kind backend, Kernel function, Scratch scratch) {
  const auto found = by_name_.find(name);
  check(found != by_name_.end(), "a {} kernel names op \"{}\", which has no row", to_string(Device{backend, 0}), name);
  found->second->kernel[static_cast<std::size_t>(backend)] = function;
  if (scratch) found->second->scratch[static_cast<std::size_t>(backend)] = scratch;
}

const Op& OpTable::at(std::string_view name) const {
  if (const auto found = by_name_.find(name); found != by_name_.end()) return *found->second;
  const auto nearest = std::min_element(rows_.begin(), rows_.end(), [&](const Op& a, const Op& b) {
    return edit_distance(a.name, name) < edit_distance(b.name, name);
  });
  fail("no op \"{}\"; the nearest is \"{}\"", name, nearest == rows_.end() ? "" : nearest->name);
}

namespace {
OpTable& mutable_op_table() {
  static OpTable table = [] {
    OpTable t;
    register_pointwise(t);
    register_reduce(t);
    register_matmul(t);
    register_view(t);
    register_index(t);
    register_norm(t);
    register_attention(t);
    register_loss(t);
    register_random(t);
    register_create(t);
    register_optimizer(t);
    register_collective(t);
    register_transfer(t);
    register_cpu(t);
    return t;
  }();
  return table;
}
}  // namespace

const OpTable& op_table() { return mutable_op_table(); }

void add_kernels(const Backend& backend) { backend.register_kernels(mutable_op_table()); }

}  // namespace sherd
