#include "compile/run/argument_copies.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "runtime/autograd/autograd.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::Program;

using Range = std::pair<std::int64_t, std::int64_t>;  // bytes of a storage

constexpr std::int64_t kFarApart = 4;  // times the bytes that the arguments have

void note(std::vector<bool>& noted, const Program& program, const ir::TensorRef& ref) {
  if (!ref.defined()) return;
  if (const ir::Value& value = program.value(ref.value); value.kind == ir::ValueKind::argument)
    noted[static_cast<std::size_t>(value.source)] = true;
}

std::vector<bool> written_arguments(const Program& program) {
  std::vector<bool> written(program.arguments.size());
  for (const ir::GraphNode& node : program.nodes) {
    for (const ir::TensorRef& ref : node.out) note(written, program, ref);
    for (const int i : up_to(node.num_mutated)) note(written, program, node.in[static_cast<std::size_t>(i)]);
  }
  return written;
}

std::vector<bool> arguments_used_as_such(const Program& program) {
  std::vector<bool> used = written_arguments(program);
  for (const ir::GraphResult& result : program.results) note(used, program, result.local);
  for (const ir::SlotUpdate& update : program.updates) note(used, program, update.result.local);
  return used;
}

bool has_any(const std::vector<bool>& all, const std::vector<std::size_t>& members) {
  return std::ranges::any_of(members, [&](std::size_t i) { return all[i]; });
}

// From a cache line's start on: kernels find elements as they lay.
std::optional<Range> range_to_copy(std::span<const Tensor> arguments, const std::vector<std::size_t>& members) {
  Range all{std::numeric_limits<std::int64_t>::max(), 0};
  std::int64_t bytes = 0;
  for (const std::size_t i : members) {
    const Tensor local = arguments[i].local();
    const auto [first, last] = ir::reference(local, 0).extent();
    if (first == last) continue;
    all = {std::min(all.first, first / kBufferAlign * kBufferAlign), std::max(all.second, last)};
    bytes += local.numel() * byte_size(local.dtype());
  }
  if (bytes == 0 || all.second - all.first > kFarApart * bytes + kBufferAlign) return {};
  return all;
}

Tensor bytes_in(const Ref<Storage>& storage, Range range) {
  return Tensor::over(storage, {range.second - range.first}, {1}, range.first, DType::u8);
}

}  // namespace

ArgumentCopies::ArgumentCopies(const Program& program, std::span<const Tensor> arguments)
    : arguments_(arguments.begin(), arguments.end()) {
  const std::vector<bool> used = arguments_used_as_such(program);
  std::map<std::uint64_t, std::vector<std::size_t>> by_storage;
  for (const std::size_t i : indices(arguments)) by_storage[arguments[i].local().storage()->id()].push_back(i);
  for (auto& [id, members] : by_storage)
    if (!has_any(used, members)) copy(std::move(members));
}

void ArgumentCopies::copy(std::vector<std::size_t> members) {
  const Ref<Storage> storage = arguments_[members[0]].local().storage();
  const std::optional<Range> range = range_to_copy(arguments_, members);
  if (!range || storage->owner || home_of(*storage)) return;
  const GradMode off(false);
  const Tensor from = bytes_in(storage, *range);
  Tensor to;
  try {
    to = bytes_over(Storage::allocate(from.numel(), storage->category(), storage->device()));
  } catch (const OutOfMemory&) { return; }
  copy_into(to, from);
  for (const std::size_t i : members) {
    Tensor& argument = arguments_[i];
    const Tensor local = argument.local();
    const Tensor copied = Tensor::over(to.storage(), local.shape(), local.strides(),
                                       local.offset() - range->first / byte_size(local.dtype()), local.dtype());
    argument = argument.is_distributed() ? Tensor::distributed(argument.shape(), argument.layout(), copied) : copied;
  }
  copies_.push_back({std::move(members), from, to});
}

void ArgumentCopies::write_back(const Program& program) const {
  const std::vector<bool> written = written_arguments(program);
  const GradMode off(false);
  for (const Copy& copy : copies_)
    if (has_any(written, copy.arguments)) copy_into(copy.from, copy.to);
}

}  // namespace sherd
