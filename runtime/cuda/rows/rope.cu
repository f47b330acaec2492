// Rotary positions (Su et al., "RoFormer", 2021), in the half-split form of Llama: pairs (i, i + K/2). A block turns a
// few positions of many rows: it finds their cosines and sines once, in f64, and uses them for every batch and head, so
// that the angles cost little beside the memory traffic.
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/copy.h"
#include "runtime/cuda/rows/elements.h"
#include "runtime/op/rows/attention_attrs.h"

namespace sherd::cuda {

namespace {

constexpr unsigned kRopeThreads = 256;
constexpr std::int64_t kMaxPairs = 256;  // of a block: its angles fit in shared memory

template <class T>
struct RopeArgs {
  const T* x;
  T* y;
  std::int64_t x_batch, x_head, x_position, y_batch, y_head, y_position;  // strides
  std::int64_t rows, positions, pairs;                                    // rows: batch times heads
  std::int64_t first_position;
  double theta, sign;
  std::int64_t rows_per_block;
  int block_positions, block_pairs;
  FastDivide heads, by_positions, by_vectors;  // divide by heads, positions of the block, vectors of its pairs
};

template <class T, int V>
__global__ void rope_kernel(RopeArgs<T> a) {
  using C = Compute<T>;
  const int angles = a.block_positions * a.block_pairs;
  C* const cosines = reinterpret_cast<C*>(shared_bytes(static_cast<std::size_t>(2 * angles) * sizeof(C)));
  C* const sines = cosines + angles;
  const std::int64_t first_position = std::int64_t{block_index()} * a.block_positions;
  const std::int64_t first_pair = std::int64_t{block_index_z()} * a.block_pairs;
  for (int i = thread_index(); i < angles; i += block_threads()) {
    const std::int64_t pair = first_pair + i % a.block_pairs;
    const auto position = static_cast<double>(a.first_position + first_position + i / a.block_pairs);
    const double angle = position * std::pow(a.theta, -static_cast<double>(pair) / static_cast<double>(a.pairs));
    cosines[i] = static_cast<C>(std::cos(angle));
    sines[i] = static_cast<C>(a.sign * std::sin(angle));
  }
  sync_block();
  const std::int64_t first_row = std::int64_t{block_index_y()} * a.rows_per_block;
  const std::int64_t rows = a.rows - first_row < a.rows_per_block ? a.rows - first_row : a.rows_per_block;
  const auto items = static_cast<std::uint32_t>(rows * a.block_positions * (a.block_pairs / V));
  for (auto item = static_cast<std::uint32_t>(thread_index()); item < items; item += kRopeThreads) {
    std::uint32_t vector, position, head;
    const std::uint32_t row = a.by_positions.divide(a.by_vectors.divide(item, vector), position);
    const std::uint32_t batch = a.heads.divide(static_cast<std::uint32_t>(first_row) + row, head);
    const std::int64_t p = first_position + position, pair = first_pair + std::int64_t{vector} * V;
    if (p >= a.positions || pair >= a.pairs) continue;
    const T* const x = a.x + batch * a.x_batch + head * a.x_head + p * a.x_position + pair;
    T* const y = a.y + batch * a.y_batch + head * a.y_head + p * a.y_position + pair;
    const Vec<T, V> x1 = load_vec<V>(x), x2 = load_vec<V>(x + a.pairs);
    const int angle = static_cast<int>(position) * a.block_pairs + static_cast<int>(vector) * V;
    Vec<T, V> y1, y2;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const C c = cosines[angle + i], s = sines[angle + i], u = to_compute(x1[i]), v = to_compute(x2[i]);
      y1[i] = from_compute<T>(u * c - v * s);
      y2[i] = from_compute<T>(v * c + u * s);
    }
    store_vec(y, y1);
    store_vec(y + a.pairs, y2);
  }
}

template <class T>
bool takes_vectors(const RopeArgs<T>& a) {
  constexpr std::int64_t V = kVecElements<T>;
  const std::int64_t strides[] = {a.x_batch, a.x_head, a.x_position, a.y_batch, a.y_head, a.y_position, a.pairs};
  for (const std::int64_t stride : strides)
    if (stride % V != 0) return false;
  return (reinterpret_cast<std::uintptr_t>(a.x) | reinterpret_cast<std::uintptr_t>(a.y)) % 16 == 0;
}

template <class T, int V>
void launch_rope(cudaStream_t stream, RopeArgs<T>& a) {
  constexpr std::int64_t kRounds = 8;  // items of a thread, at most about
  a.block_pairs = static_cast<int>(std::min(a.pairs, kMaxPairs));
  a.block_positions = static_cast<int>(std::clamp<std::int64_t>(kMaxPairs / a.block_pairs, 1, a.positions));
  const std::int64_t per_row = std::int64_t{a.block_positions} * (a.block_pairs / V);
  a.rows_per_block = std::max<std::int64_t>(kRopeThreads * kRounds / per_row, 1);
  a.rows_per_block = std::max(a.rows_per_block, (a.rows + 65534) / 65535);  // blocks along y
  a.by_positions = FastDivide(static_cast<std::uint32_t>(a.block_positions));
  a.by_vectors = FastDivide(static_cast<std::uint32_t>(a.block_pairs / V));
  const auto count = [](std::int64_t n, std::int64_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  launch(stream, rope_kernel<T, V>,
         {.blocks = {count(a.positions, a.block_positions), count(a.rows, a.rows_per_block),
                     count(a.pairs, a.block_pairs)},
          .threads = kRopeThreads,
          .shared_bytes = static_cast<std::size_t>(2 * a.block_positions * a.block_pairs) * sizeof(Compute<T>)},
         a);
}

template <class T>
void rope_as(const KernelCall& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const auto& attrs = call.attrs.as<RopeAttrs>();
  Context& context = context_of(call);
  const bool rows_are_dense = x.strides()[3] == 1;
  const Workspace copy(context, rows_are_dense ? 0 : x.bytes());
  Layout from = layout_of(x);
  if (!rows_are_dense) {
    from = {copy.data(), contiguous_strides(x.shape())};
    strided_copy(context, x.dtype(), x.shape(), layout_of(x), from);
  }
  RopeArgs<T> a{};
  a.x = static_cast<const T*>(from.data);
  a.y = y.mutable_data<T>();
  a.x_batch = from.strides[0], a.x_head = from.strides[1], a.x_position = from.strides[2];
  a.y_batch = y.strides()[0], a.y_head = y.strides()[1], a.y_position = y.strides()[2];
  a.rows = x.size(0) * x.size(1);
  a.positions = x.size(2);
  a.pairs = x.size(3) / 2;
  a.first_position = attrs.first_position;
  a.theta = attrs.theta;
  a.sign = attrs.inverse ? -1 : 1;
  a.heads = FastDivide(static_cast<std::uint32_t>(x.size(1)));
  if (takes_vectors(a)) launch_rope<T, kVecElements<T>>(context.stream(), a);
  else launch_rope<T, 1>(context.stream(), a);
}

void rope(const KernelCall& call) {
  if (call.out[0].numel() == 0) return;
  visit_floating(call.out[0].dtype(), [&]<class T>(Type<T>) { rope_as<T>(call); });
}

}  // namespace

void register_rope(OpTable& table) { table.kernel(op::rope, Device::Kind::cuda, rope); }

}  // namespace sherd::cuda
