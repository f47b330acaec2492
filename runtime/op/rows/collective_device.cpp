// Collectives of device memory. What a dim that is not the outermost needs, blocks that are dense by rank, is made and
// taken apart by compute's own copies; the collective itself runs on the queue "collective".
#include <vector>

#include "runtime/comm/group/count_collective.h"
#include "runtime/comm/group/device_support.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/backend.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/collective_cut.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using comm::CommOp;

Buffer buffer_of(const Tensor& t) {
  return {t.storage()->address() + t.offset() * byte_size(t.dtype()), t.bytes(), t.device()};
}

/// A copy by compute, which waits for the queues that use either.
void copy(const KernelCall& call, const Tensor& to, const Tensor& from) {
  if (to.numel() == 0) return;
  from.storage()->wait_to_read();
  to.storage()->wait_to_write();
  if (to.is_ghost()) return;
  const Kernel kernel = kernels_of(op::copy).kernel[static_cast<std::size_t>(to.device().kind)];
  kernel({op::copy, {&from, 1}, {&to, 1}, {}, {.device = call.exec.device}});
}

/// [outer, its n, inner] of one rank, in the whole tensor and dense in blocks [part][outer, its n, inner].
struct Block {
  Tensor in_whole, dense;
};

std::vector<Block> blocks_of(const Cut& cut, const Tensor& whole, const Tensor& blocks) {
  std::vector<Block> result;
  std::int64_t at = 0;
  for (const int r : up_to(cut.parts)) {
    const Shape shape{cut.outer, cut.line(r)};
    result.push_back({Tensor::make(whole.storage(), shape, {cut.n * cut.inner, 1}, whole.offset() + cut.first(r),
                                   whole.dtype(), whole.device()),
                      Tensor::make(blocks.storage(), shape, {cut.line(r), 1}, blocks.offset() + at, blocks.dtype(),
                                   blocks.device())});
    at += cut.outer * cut.line(r);
  }
  return result;
}

Tensor blocks_like(const Tensor& t) {
  return Tensor::empty({t.numel()}, t.dtype(), t.device(), MemoryCategory::communication);
}

Tensor packed(const KernelCall& call, const Cut& cut, const Tensor& whole) {
  const Tensor blocks = blocks_like(whole);
  for (const Block& block : blocks_of(cut, whole, blocks)) copy(call, block.dense, block.in_whole);
  return blocks;
}

void unpack(const KernelCall& call, const Cut& cut, const Tensor& blocks, const Tensor& whole) {
  for (const Block& block : blocks_of(cut, whole, blocks)) copy(call, block.in_whole, block.dense);
}

void issue(const KernelCall& call, Collective collective, const Tensor& in, const Tensor& out) {
  CollectivePart& part = collective.parts[0];
  part.in = buffer_of(in);
  part.out = buffer_of(out);
  part.dtype = in.dtype();
  std::vector<Loan> loans{{out.storage(), true}};
  if (in.storage() != out.storage()) loans.push_back({in.storage(), false});
  group_of(call.attrs.as<CollectiveAttrs>())
      .issue(
          std::move(collective),
          {.queue = *call.exec.queue, .name = call.op.name, .loans = loans, .max_in_flight = kMaxCollectivesInFlight});
}

void run_over_ranks(const KernelCall& call) {
  const auto& attrs = call.attrs.as<CollectiveAttrs>();
  const Tensor &x = call.in[0], &out = call.out[0];
  const int ranks = group_of(attrs).size();
  const auto cut_of = [&](const Tensor& whole, int dim) { return Cut(whole.shape(), dim, whole.dtype(), ranks); };
  const ReduceOptions reduction{.kind = static_cast<ReduceKind>(attrs.kind)};
  if (&call.op == &op::all_gather) {
    const Cut cut = cut_of(out, attrs.dim);
    const Tensor to = cut.outer == 1 ? out : blocks_like(out);
    issue(call, {.op = CommOp::all_gather, .parts = {{.counts = cut.counts()}}}, x, to);
    if (cut.outer != 1) unpack(call, cut, to, out);
  } else if (&call.op == &op::reduce_scatter) {
    const Cut cut = cut_of(x, attrs.dim);
    issue(call, {.op = CommOp::reduce_scatter, .parts = {{.counts = cut.counts()}}, .reduction = reduction},
          cut.outer == 1 ? x : packed(call, cut, x), out);
  } else if (&call.op == &op::all_to_all) {
    const Cut split = cut_of(x, attrs.split_dim), joined = cut_of(out, attrs.dim);
    const Tensor to = joined.outer == 1 && x.storage() != out.storage() ? out : blocks_like(out);
    issue(call, {.op = CommOp::all_to_all, .parts = {{.counts = split.counts(), .out_counts = joined.counts()}}},
          split.outer == 1 ? x : packed(call, split, x), to);
    if (to.storage() != out.storage()) unpack(call, joined, to, out);
  } else if (&call.op == &op::all_reduce) {
    issue(call, {.op = CommOp::all_reduce, .parts = {{.counts = {x.numel()}}}, .reduction = reduction}, x, out);
  } else {
    issue(call, {.op = CommOp::broadcast, .parts = {{.counts = {x.numel()}}}, .peer = attrs.root}, x, out);
  }
}

CommOp kind_of(const Op& row) {
  if (&row == &op::all_gather) return CommOp::all_gather;
  if (&row == &op::reduce_scatter) return CommOp::reduce_scatter;
  if (&row == &op::all_to_all) return CommOp::all_to_all;
  return &row == &op::all_reduce ? CommOp::all_reduce : CommOp::broadcast;
}

}  // namespace

void run_collective_on_device(const KernelCall& call) {
  const Tensor &x = call.in[0], &out = call.out[0];
  const ProcessGroup& group = group_of(call.attrs.as<CollectiveAttrs>());
  if (!x.is_contiguous()) fail("{} needs a dense tensor, got {} with strides {}", call.op.name, x, x.strides());
  if (group.size() == 1) {
    if (x.is_ghost()) return;
    if (x.numel() > 0 && x.raw() != out.raw()) call.exec.device->copy(out.raw(), x.raw(), x.bytes());
    return;
  }
  if (!group.supports(out.device())) refuse_device(group, out.device(), call.op.name, group.size());
  const CommOp kind = kind_of(call.op);
  count_collective({.kind = kind,
                    .op = call.op.name,
                    .ranks = group.size(),
                    .bytes = kind == CommOp::all_gather ? out.bytes() : x.bytes()});
  run_over_ranks(call);
}

}  // namespace sherd
