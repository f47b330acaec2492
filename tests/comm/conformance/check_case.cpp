// The oracle is a scalar loop per element: what every rank holds is a function of (rank, tensor, element), so each rank
// knows what all have. Sums go by tests/support/tree_sum.h, which is not the library's order but another way to it.
#include "tests/comm/conformance/check_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/exec/timeline_recording.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/tree_sum.h"

namespace sherd::testing {

namespace {

using comm::CommOp;
using Counts = std::vector<std::int64_t>;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kGuard = 48;  // bytes behind the elements of a buffer that nobody may write
constexpr std::byte kUntouched{0x5a};

std::int64_t start_of(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

// ---- elements ----

/// What rank `rank` holds at element i of a tensor: the order of a float sum shows in its bits, integers wrap, maxima
/// meet NaNs.
template <class T>
T element(const CollectiveCase& c, int rank, int tensor, std::int64_t i) {
  const ReduceKind kind = c.reduction.kind;
  const bool with_nan = kind == ReduceKind::max || kind == ReduceKind::min;
  auto h = static_cast<std::uint64_t>(i * 7 + rank * 1000003 + tensor * 7919 + 1) * 0x9e3779b97f4a7c15u;
  h ^= h >> 29;
  if constexpr (std::is_same_v<T, bool>) return h % 3 == 0;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(h);
  else if (c.whole && !with_nan)
    return static_cast<T>(static_cast<float>(kind == ReduceKind::product ? 1 + h % 2 : h % 13));
  else if (with_nan && h % 31 == 0) return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  else return static_cast<T>(static_cast<float>(static_cast<int>(h % 60001) - 30000) / 977.0f);
}

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bf16> || std::is_same_v<T, f16>, float,
                               std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;

template <class A>
A combined(ReduceKind kind, A a, A x) {
  using Wide = std::conditional_t<std::is_integral_v<A>, std::uint64_t, A>;
  if (kind == ReduceKind::max || kind == ReduceKind::min) {
    if constexpr (std::is_floating_point_v<A>)
      if (std::isnan(a) || std::isnan(x)) return std::isnan(a) ? a : x;
    return kind == ReduceKind::max ? std::max(a, x) : std::min(a, x);
  }
  const auto u = static_cast<Wide>(a), v = static_cast<Wide>(x);
  return static_cast<A>(kind == ReduceKind::product ? u * v : u + v);
}

template <class A>
A rounded(A value, DType wire) {
  if constexpr (std::is_floating_point_v<A>)
    if (byte_size(wire) < static_cast<std::int64_t>(sizeof(A)))
      visit_floating(wire, [&]<class W>(Type<W>) { value = convert<A>(convert<W>(value)); });
  return value;
}

/// One tensor of a case.
struct TensorSpec {
  int number = 0;
  DType dtype{}, out_dtype{}, wire{};
  std::int64_t size = 0, blocks = 1;
  int only = -1;  ///< all ranks hold what this one does; -1: each has its own

  int holder(int rank) const { return only >= 0 ? only : rank; }
};

void write_element(const TensorSpec& t, const CollectiveCase& c, int rank, std::int64_t i, DType dtype, std::byte* to) {
  visit_dtype(t.dtype, [&]<class T>(Type<T>) {
    const T value = element<T>(c, t.holder(rank), t.number, i);
    if (dtype == t.dtype) {
      std::memcpy(to, &value, sizeof(T));
    } else if constexpr (is_floating(dtype_of<T>)) {
      visit_floating(dtype, [&]<class U>(Type<U>) {
        const U cast = convert<U>(value);
        std::memcpy(to, &cast, sizeof(U));
      });
    }
  });
}

/// The sum of all ranks' element i, stored or added to what is there.
void reduce_element(const TensorSpec& t, const CollectiveCase& c, std::int64_t i, std::byte* to) {
  const ReduceKind kind = c.reduction.kind;
  visit_dtype(t.dtype, [&]<class T>(Type<T>) {
    using A = Sum<T>;
    std::vector<A> leaves;
    for (int r = 0; r < c.ranks; ++r)
      leaves.push_back(rounded(static_cast<A>(element<T>(c, t.holder(r), t.number, i)), t.wire));
    A sum = tree_sum(leaves, [kind](A a, A x) { return combined(kind, a, x); });
    const auto store = [&]<class U>(Type<U>) {
      using Wider = std::conditional_t<(sizeof(U) > sizeof(A)), U, A>;
      U old;
      std::memcpy(&old, to, sizeof(U));
      const Wider value = convert<Wider>(sum);
      const U stored = convert<U>(c.accumulate ? combined(ReduceKind::sum, convert<Wider>(old), value) : value);
      std::memcpy(to, &stored, sizeof(U));
    };
    if constexpr (is_floating(dtype_of<T>)) {
      sum = sum * static_cast<A>(kind == ReduceKind::avg ? c.reduction.scale / c.ranks : c.reduction.scale);
      if (t.wire != t.out_dtype) sum = rounded(sum, t.wire);
      visit_floating(t.out_dtype, store);
    } else {
      store(Type<T>{});
    }
  });
}

// ---- tensors of a case ----

/// Where elements are and what a call does to a buffer of this rank.
struct Expectation {
  Bytes before, after;
};

/// Elements of `dtype`, all zero, and the guard.
Bytes blank(std::int64_t count, DType dtype) {
  Bytes bytes(static_cast<std::size_t>(count * byte_size(dtype)));
  bytes.resize(bytes.size() + kGuard, kUntouched);
  return bytes;
}

std::byte* at(Bytes& bytes, std::int64_t i, DType dtype) { return bytes.data() + i * byte_size(dtype); }

Counts counts_of(const CollectiveCase& c, std::int64_t size, std::int64_t blocks) {
  const std::int64_t rows = size / blocks, chunk = (rows + c.ranks - 1) / c.ranks;
  Counts counts;
  for (int r = 0; r < c.ranks; ++r) {
    const std::int64_t mine = c.split == Split::even     ? rows / c.ranks
                              : c.split == Split::chunks ? std::clamp<std::int64_t>(rows - r * chunk, 0, chunk)
                              : r == c.ranks - 1         ? rows
                                                         : 0;
    counts.push_back(mine * blocks);
  }
  return counts;
}

/// What rank `from` sends to rank `to`.
std::int64_t swapped(const CollectiveCase& c, std::int64_t size, int from, int to) {
  const std::int64_t alike = size / c.ranks;
  if (c.split == Split::even) return alike;
  if (c.split == Split::last) return to == c.ranks - 1 ? size : 0;
  return size == 0 ? 0 : alike + (from * 7 + to * 3) % 5;
}

/// A tensor's part of the call and its buffers: the first is the input, the second, if there is one, the output.
struct CaseTensor {
  CollectivePart part;
  std::vector<Expectation> buffers;
  std::int64_t in_offset = 0, out_offset = 0;  // bytes from the start of the buffer that holds them
};

/// Place of rank r's element i in a full tensor of blocks.
std::int64_t place(const TensorSpec& t, const Counts& counts, int rank, std::int64_t i) {
  const std::int64_t run = counts[static_cast<std::size_t>(rank)] / t.blocks;
  const std::int64_t block = start_of(counts, static_cast<int>(counts.size())) / t.blocks;
  return i / run * block + start_of(counts, rank) / t.blocks + i % run;
}

CaseTensor gathered(const TensorSpec& t, const CollectiveCase& c, int me) {
  CaseTensor tensor{.part = {.counts = counts_of(c, t.size, t.blocks)}, .buffers = {}};
  const Counts& counts = tensor.part.counts;
  const std::int64_t own = counts[static_cast<std::size_t>(me)];
  Expectation in{blank(own, t.dtype), {}}, out{blank(start_of(counts, c.ranks), t.out_dtype), {}};
  for (std::int64_t i = 0; i < own; ++i) write_element(t, c, me, i, t.dtype, at(in.before, i, t.dtype));
  in.after = in.before;
  out.after = out.before;
  for (int r = 0; r < c.ranks; ++r)
    for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i)
      write_element(t, c, r, i, t.out_dtype, at(out.after, place(t, counts, r, i), t.out_dtype));
  if (!c.in_place) {
    tensor.buffers = {in, out};
  } else {
    tensor.in_offset = start_of(counts, me) * byte_size(t.dtype);
    std::copy_n(in.before.begin(), own * byte_size(t.dtype), out.before.begin() + tensor.in_offset);
    tensor.buffers = {out};
  }
  return tensor;
}

CaseTensor scattered(const TensorSpec& t, const CollectiveCase& c, int me) {
  CaseTensor tensor{.part = {.counts = counts_of(c, t.size, t.blocks)}, .buffers = {}};
  const Counts& counts = tensor.part.counts;
  const std::int64_t own = counts[static_cast<std::size_t>(me)], total = start_of(counts, c.ranks);
  Expectation in{blank(total, t.dtype), {}}, out{blank(own, t.out_dtype), {}};
  for (std::int64_t i = 0; i < total; ++i) write_element(t, c, me, i, t.dtype, at(in.before, i, t.dtype));
  in.after = in.before;
  if (c.accumulate)
    for (std::int64_t i = 0; i < own; ++i)
      write_element(t, c, 100 + me, i, t.out_dtype, at(out.before, i, t.out_dtype));
  out.after = out.before;
  for (std::int64_t i = 0; i < own; ++i) reduce_element(t, c, place(t, counts, me, i), at(out.after, i, t.out_dtype));
  if (!c.in_place) {
    tensor.buffers = {in, out};
  } else {
    tensor.out_offset = start_of(counts, me) * byte_size(t.dtype);
    std::copy_n(out.after.begin(), own * byte_size(t.dtype), in.after.begin() + tensor.out_offset);
    tensor.buffers = {in};
  }
  return tensor;
}

/// all_reduce, broadcast, and what goes between pairs: as many elements everywhere.
CaseTensor flat(const TensorSpec& t, const CollectiveCase& c, int me, int root) {
  CaseTensor tensor{.part = {.counts = {t.size}}, .buffers = {}};
  Expectation in{blank(t.size, t.dtype), {}}, out = in;
  for (std::int64_t i = 0; i < t.size; ++i) write_element(t, c, me, i, t.dtype, at(in.before, i, t.dtype));
  in.after = in.before;
  out.after = out.before;
  const bool receives = c.op == CommOp::send ? me % 2 == 1 : true;
  for (std::int64_t i = 0; receives && i < t.size; ++i) {
    std::byte* const to = at(out.after, i, t.dtype);
    if (c.op == CommOp::all_reduce) reduce_element(t, c, i, to);
    else write_element(t, c, c.op == CommOp::send ? me - 1 : root, i, t.dtype, to);
  }
  if (c.in_place) tensor.buffers = {{in.before, out.after}};
  else tensor.buffers = {in, out};
  return tensor;
}

CaseTensor exchanged(const TensorSpec& t, const CollectiveCase& c, int me) {
  CaseTensor tensor;
  Counts &sends = tensor.part.counts, &receives = tensor.part.out_counts;
  for (int r = 0; r < c.ranks; ++r) {
    sends.push_back(swapped(c, t.size, me, r));
    receives.push_back(swapped(c, t.size, r, me));
  }
  Expectation in{blank(start_of(sends, c.ranks), t.dtype), {}}, out{blank(start_of(receives, c.ranks), t.dtype), {}};
  for (std::int64_t i = 0; i < start_of(sends, c.ranks); ++i)
    write_element(t, c, me, i, t.dtype, at(in.before, i, t.dtype));
  in.after = in.before;
  out.after = out.before;
  std::int64_t next = 0;
  for (int r = 0; r < c.ranks; ++r) {
    std::int64_t from = 0;
    for (int to = 0; to < me; ++to) from += swapped(c, t.size, r, to);
    for (std::int64_t i = 0; i < receives[static_cast<std::size_t>(r)]; ++i)
      write_element(t, c, r, from + i, t.dtype, at(out.after, next++, t.dtype));
  }
  tensor.buffers = {in, out};
  return tensor;
}

CaseTensor tensor_of(const TensorSpec& t, const CollectiveCase& c, int me, int root) {
  CaseTensor tensor = c.op == CommOp::all_gather       ? gathered(t, c, me)
                      : c.op == CommOp::reduce_scatter ? scattered(t, c, me)
                      : c.op == CommOp::all_to_all     ? exchanged(t, c, me)
                                                       : flat(t, c, me, root);
  tensor.part.dtype = t.dtype;
  tensor.part.out_dtype = t.out_dtype;
  tensor.part.wire = t.wire;
  tensor.part.accumulate = c.accumulate;
  tensor.part.blocks = t.blocks;
  return tensor;
}

std::vector<TensorSpec> specs_of(const CollectiveCase& c, int only) {
  if (c.op == CommOp::barrier) return {};
  std::vector<TensorSpec> specs{{0, c.dtype, c.out_dtype, c.wire, c.size, c.blocks, only}};
  if (!c.is_list) return specs;
  const DType wide = is_floating(c.dtype) ? DType::f64 : DType::i64;
  specs.push_back({1, wide, wide, wide, c.size / 2 + 3, 1, only});
  specs.push_back({2, wide, wide, wide, 0, 1, only});
  return specs;
}

/// A case on one rank, without memory: the parts of `call` come when there is some.
struct MadeCase {
  Collective call;
  std::vector<CaseTensor> tensors{};
};

bool has_peer(const CollectiveCase& c, int me) { return c.op != CommOp::send || (me ^ 1) < c.ranks; }

MadeCase make_case(const CollectiveCase& c, int me, int only = -1) {
  const int root = static_cast<int>(c.size % c.ranks);
  MadeCase made{.call = {.op = c.op == CommOp::send && me % 2 == 1 ? CommOp::recv : c.op,
                         .reduction = c.reduction,
                         .peer = c.op == CommOp::send ? me ^ 1 : root}};
  for (const TensorSpec& spec : specs_of(c, only)) made.tensors.push_back(tensor_of(spec, c, me, root));
  return made;
}

// ---- memory of a device ----

Tensor on(Device device, const Bytes& bytes, bool in_heap) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  const MemoryCategory category = in_heap ? MemoryCategory::communication : MemoryCategory::activations;
  const Tensor t = Tensor::over(Storage::allocate(size, category), {size}, {1}, 0, DType::u8);
  std::memcpy(t.storage()->write(), bytes.data(), bytes.size());
  return device == Device::cpu() ? t : to(t, device);
}

std::string differs(const Tensor& t, const Bytes& expected) {
  const Tensor here = to(t, Device::cpu());
  const std::byte* got = here.storage()->read();
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (got[i] != expected[i])
      return fmt::format("byte {} of {} is {}, not {}", i, expected.size() - kGuard, static_cast<int>(got[i]),
                         static_cast<int>(expected[i]));
  return "";
}

Buffer buffer_at(const Tensor& t, std::int64_t offset) {
  const std::int64_t bytes = t.storage()->bytes() - static_cast<std::int64_t>(kGuard);
  return {t.storage()->address() + offset, bytes - offset, t.device()};
}

}  // namespace

bool check_case(ProcessGroup& group, const CollectiveCase& c, Device device) {
  const int me = group.rank();
  if (!has_peer(c, me)) return true;  // the last one of an odd number
  auto [call, tensors] = make_case(c, me);
  std::vector<std::vector<Tensor>> memory;
  std::vector<Loan> loans;
  for (CaseTensor& t : tensors) {
    std::vector<Tensor>& buffers = memory.emplace_back();
    for (const Expectation& e : t.buffers) buffers.push_back(on(device, e.before, c.in_heap));
    t.part.in = buffer_at(buffers.front(), t.in_offset);
    t.part.out = buffer_at(buffers.back(), t.out_offset);
    call.parts.push_back(t.part);
    for (const Tensor& b : buffers) loans.push_back({b.storage(), &b == &buffers.back()});
  }
  if (!c.queue.empty() || static_cast<ProcessGroup*>(&group.host()) != &group) {
    Queue& queue = RankContext::current().queue(c.queue.empty() ? "collective" : c.queue, device);
    group.issue(std::move(call), {.queue = queue, .name = "case", .loans = loans});
    if (c.op == CommOp::barrier) queue.record().wait();
  } else {
    group.host().run(call);
  }
  bool is_right = true;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (std::size_t b = 0; b < memory[i].size(); ++b) {
      const std::string text = differs(memory[i][b], tensors[i].buffers[b].after);
      EXPECT_EQ(text, "") << "buffer " << b << " of tensor " << i << " on rank " << me << ": " << c.text();
      is_right = is_right && text.empty();
    }
  return is_right;
}

namespace {

/// Puts the buffers of a case where no rank is: on the host, whatever a ghost's tensors have.
std::vector<std::vector<Bytes>> lay_out(MadeCase& made) {
  std::vector<std::vector<Bytes>> memory;
  for (CaseTensor& t : made.tensors) {
    std::vector<Bytes>& buffers = memory.emplace_back();
    for (const Expectation& e : t.buffers) buffers.push_back(e.before);
    const auto buffer_in = [](Bytes& b, std::int64_t offset) {
      return Buffer{b.data() + offset, static_cast<std::int64_t>(b.size() - kGuard) - offset, Device::cpu()};
    };
    t.part.in = buffer_in(buffers.front(), t.in_offset);
    t.part.out = buffer_in(buffers.back(), t.out_offset);
    made.call.parts.push_back(t.part);
  }
  return memory;
}

/// Whether the result is the same for all ranks if all hold what one does, without adding up.
bool is_known_alone(const CollectiveCase& c) {
  if (c.op == CommOp::barrier || c.op == CommOp::broadcast) return true;
  if (c.op == CommOp::all_reduce)
    return c.reduction.kind != ReduceKind::sum && c.reduction.kind != ReduceKind::product && c.reduction.scale == 1;
  return c.op == CommOp::all_gather && c.out_dtype == c.dtype;
}
bool has_equal_parts(const Collective& call) {
  return std::ranges::all_of(call.parts, [](const CollectivePart& part) {
    return std::ranges::all_of(part.counts, [&](std::int64_t n) { return n == part.counts[0]; });
  });
}

std::string message_of_issue(ProcessGroup& group, const Collective& call, Queue& queue) {
  try {
    group.issue(call, {.queue = queue, .name = "case"});
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

}  // namespace

void check_issued_by_ghost(ProcessGroup& group, const CollectiveCase& c, const CommCounts::Item& real) {
  const int me = group.rank();
  if (!has_peer(c, me)) return;
  SCOPED_TRACE(fmt::format("rank {}: {}", me, c.text()));
  MadeCase made = make_case(c, me);
  const auto memory = lay_out(made), before = memory;
  Queue& queue = RankContext::current().queue(c.queue.empty() ? kCollectiveQueue : c.queue);
  Timeline step;
  {
    const TimelineRecording recording(step, {.rank = me, .ranks = c.ranks});
    group.issue(made.call, {.queue = queue, .name = "case"});
  }
  RankContext::current().drain_queues();
  ASSERT_EQ(step.items.size(), 1U);
  EXPECT_EQ(step.items[0].bytes, static_cast<double>(real.bytes));
  const bool has_price = c.ranks > 1 && c.op != CommOp::send && c.op != CommOp::barrier;
  EXPECT_EQ(step.items[0].group != Timeline::kNone, has_price);
  EXPECT_EQ(memory, before) << "a ghost moves nothing";
  for (const bool is_out : {false, true}) {
    Collective small = made.call;
    if (small.parts.empty()) return;
    const CollectiveExtent extent = extent_of(small, small.parts[0], me);
    if ((is_out ? extent.out : extent.in) == 0) continue;
    (is_out ? small.parts[0].out : small.parts[0].in).bytes = (is_out ? extent.out : extent.in) - 1;
    const std::string text = message_of_issue(group, small, queue);
    EXPECT_NE(text.find(comm::name(small.op)), std::string::npos) << text;
  }
}

void check_run_by_ghost(ProcessGroup& group, CollectiveCase c) {
  const int me = group.rank();
  if (!has_peer(c, me)) return;
  SCOPED_TRACE(fmt::format("rank {}: {}", me, c.text()));
  const ReduceOptions reduction = c.reduction;
  const bool is_known = is_known_alone(c);
  if (reduction.kind == ReduceKind::avg) c.reduction.kind = ReduceKind::max;  // of equal values, without rounding
  MadeCase made = make_case(c, me, /*only=*/me);
  const auto memory = lay_out(made);
  made.call.reduction = reduction;
  std::string refusal;
  try {
    group.host().run(made.call);
  } catch (const Error& error) { refusal = error.what(); }
  if (!is_known || (c.op == CommOp::all_gather && !has_equal_parts(made.call))) {
    EXPECT_NE(refusal.find(fmt::format("{}", comm::name(made.call.op))), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("over the ghost group"), std::string::npos) << refusal;
    return;
  }
  EXPECT_EQ(refusal, "");
  for (std::size_t i = 0; i < made.tensors.size(); ++i)
    for (std::size_t b = 0; b < memory[i].size(); ++b)
      EXPECT_EQ(memory[i][b], made.tensors[i].buffers[b].after) << "buffer " << b << " of tensor " << i;
}

}  // namespace sherd::testing
