#pragma once
// The parts of a step that is made in pieces: of the files of Optimizer alone.
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "nn/optim/optimizer.h"

namespace sherd::nn {

/// What the step of now has begun, in the order in which it is to be updated.
struct Optimizer::PiecesInFlight {
  struct Fetched {
    StatePiece piece;
    Tensor count;
    std::vector<Tensor> homes;  // of what is updated: values, state
    Tensor here;                // undefined: all of it is in memory
    std::vector<Tensor> gradient_homes;
    Tensor gradients_here;
  };
  StatePieces cut;
  Tensor count{};  // of what is cut now
  std::deque<Fetched> fetched{};
};

/// A step that updates within backward.
struct Optimizer::InBackward {
  bool has_begun = false;
  std::vector<bool> is_updated{};                   // by parameter
  std::vector<std::pair<Tensor, Tensor>> counts{};  // of cohorts: before the step, and in it
  std::vector<StatePiece> order{};                  // of the step before: what comes first is fetched ahead
  std::vector<StatePiece> order_now{};
  std::int64_t in_flight = 0;  // pieces in memory at a time, between steps
  std::deque<std::pair<StatePiece, Tensor>> ahead{};
  std::vector<std::pair<Ref<Storage>, std::uint32_t>> homes_ahead{};  // with their versions then
};

}  // namespace sherd::nn
