#pragma once
// The two sides of a parity test: a model distributed over ranks, and the same model whole on every rank as its
// reference.
#include <functional>

#include "nn/optim/optimizer.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::testing {

/// A model in training. `loss(step)` is a forward on that step's batch.
struct Side {
  nn::Module& model;
  std::function<Tensor(std::uint64_t step)> loss;
  ProcessGroup* ranks = nullptr;  ///< whose mean loss is that of the whole batch; null: every rank has the whole one
};

struct TrainingOptions {
  int steps = 4;
  double lr = 1e-2;
  double max_norm = 0;          ///< gradients are clipped to it; 0: they are not
  double norm_limit = 1e-5;     ///< of the norms' difference, relative
  double gradient_limit = 0;    ///< near() of the gradients of every step; 0: they are not looked at
  double value_limit = 1e-5;    ///< near() of the parameters after the last step; 0: as above
  bool zero_gradients = false;  ///< instead of clearing them
  std::function<void(std::uint64_t step, nn::Optimizer& optimizer)> before_step{};  ///< of the spread model
};

/// Trains both with AdamW: the same losses, norms and values, whoever holds them. Collective over the ranks.
void expect_trains_alike(const Side& spread, const Side& reference, const TrainingOptions& options);

/// What this rank holds of every parameter is its part of the reference's, which is whole. All are distributed.
void expect_same_values(const nn::Module& spread, const nn::Module& reference, double limit = 1e-5);
/// The same bit for bit.
void expect_same_bits(const nn::Module& spread, const nn::Module& reference);
/// The same of gradients, which lie as their parameters do.
void expect_same_gradients(const nn::Module& spread, const nn::Module& reference, double limit = 1e-5);

/// The mean of what the ranks have. Collective.
double mean_over(ProcessGroup& ranks, double value);
/// All ranks have this very number. Collective.
void expect_equal_on_all(ProcessGroup& ranks, double value);

/// A step that fails on one rank ends on all of them, soon and with its reason; what it held is given back, and after a
/// reset the model may go on. `net` is the root of what is fully sharded.
void expect_left_by_all(nn::Module& net, nn::Optimizer& optimizer, const std::function<void()>& step,
                        std::string_view reason);

}  // namespace sherd::testing
