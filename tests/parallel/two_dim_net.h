#pragma once
// A residual network with a gain, cut by tensor parallelism, then by fully_shard; the reference is the same one whole.
//
//   h = W_in x + b;  h += down(relu(up(gain(h))))  per block;  y = head(h)
#include "nn/parallel/tensor_parallel.h"
#include "tests/parallel/nets.h"

namespace sherd::testing {

/// x times a weight per feature: like a norm's, its gradient is a sum over all positions.
struct Gain : nn::Layer<Gain> {
  nn::Parameter& weight;
  explicit Gain(std::int64_t width) : weight(add_parameter("weight", {width}, nn::Init::uniform(1))) {}
  Tensor forward(const Tensor& x) { return x * weight; }
};

/// x + down(relu(up(gain(x)))) on x [B, T, width].
struct ResidualBlock : nn::Layer<ResidualBlock> {
  Gain& gain;
  nn::Linear &up, &down;
  ResidualBlock(std::int64_t width, std::int64_t hidden)
      : gain(add<Gain>("gain", width)),
        up(add<nn::Linear>("up", width, hidden)),
        down(add<nn::Linear>("down", hidden, width)) {}
  Tensor forward(const Tensor& x) { return x + down(relu(up(gain(x)))); }
};

struct ResidualNet : nn::Layer<ResidualNet> {
  nn::Linear& in;
  nn::ModuleList<ResidualBlock>& blocks;
  nn::Linear& head;
  /// x [B, T, 3] -> [B, T, 2].
  ResidualNet(std::int64_t width, std::int64_t hidden, int layers = 2)
      : in(add<nn::Linear>("in", 3, width)),
        blocks(add<nn::ModuleList<ResidualBlock>>("blocks")),
        head(add<nn::Linear>("head", width, 2)) {
    for (int i = 0; i < layers; ++i) blocks.append(width, hidden);
  }
  Tensor forward(Tensor x) {
    x = in(x);
    for (ResidualBlock* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
};

/// Plain [B, T, 3] in, plain [B, T, 2] out. `sequence`: gains see parts of T, and their gradients are sums over ranks.
inline nn::Plan plan_of(bool sequence) {
  const Placement stream = sequence ? Shard(1) : Replicate();
  nn::Plan plan{
      {"in", nn::prepare_input({.from = Replicate(), .to = stream})},
      {"blocks.*.up", nn::colwise({.input = stream})},
      {"blocks.*.down", nn::rowwise({.output = stream})},
      {"head", nn::prepare_output({.to = Replicate(), .local = true})},
  };
  plan.emplace_back("blocks.*.up", nn::prepare_input({.from = stream, .to = Replicate()}));
  if (sequence) plan.emplace_back("blocks.*.gain", nn::sequence_parallel());
  return plan;
}

/// Names of the axes of a grid {replicas, dp, tp}; the mesh that fully_shard gets is {"dp"} or {"replicate", "dp"}.
struct Grid3 {
  int replicas, dp, tp;
  int ranks() const { return replicas * dp * tp; }
  DeviceMesh mesh(const std::shared_ptr<ProcessGroup>& group) const {
    return DeviceMesh(group, {{"replicate", replicas}, {"dp", dp}, {"tp", tp}});
  }
  DeviceMesh data(const DeviceMesh& root) const { return replicas > 1 ? root.slice({"replicate", "dp"}) : root["dp"]; }
};

/// Tensor parallelism, then fully_shard on every block and on the rest.
inline void shard_2d(ResidualNet& net, const DeviceMesh& root, const Grid3& grid, bool sequence,
                     const nn::UnitPolicy& options = {}) {
  nn::parallelize(net, root["tp"], plan_of(sequence));
  shard(net, grid.data(root), options, {.mp_policy = options.mp_policy});
}

/// This data rank's rows of a global batch; equal on the ranks of one tensor-parallel group.
inline Tensor rows_of(const Tensor& global, const DeviceMesh& root) {
  const int ranks = root.size(0) * root.size(1), rank = root.coordinate(0) * root.size(1) + root.coordinate(1);
  const std::int64_t rows = global.size(0) / ranks;
  return contiguous(narrow(global, 0, rank * rows, rows));
}

inline Tensor batch3(std::int64_t rows, std::int64_t width, std::uint64_t step, std::string_view what) {
  return random_normal({rows, 4, width}, random_key(7, what, "test", step));
}

/// The mean square on this rank's rows of each step's batch of 12; `group` is that of the root mesh.
template <class Model>
Side on_rows(Model& model, const DeviceMesh& root, ProcessGroup& group) {
  return {model,
          [&model, root](std::uint64_t step) {
            return mean_square(model(rows_of(batch3(12, 3, step, "x"), root)), rows_of(batch3(12, 2, step, "y"), root));
          },
          &group};
}
/// The same on all rows.
template <class Model>
Side on_all_rows(Model& model) {
  return {model, [&model](std::uint64_t step) {
            return mean_square(model(batch3(12, 3, step, "x")), batch3(12, 2, step, "y"));
          }};
}

}  // namespace sherd::testing
