#pragma once
// Programs made wrong at random: every kind of mistake that a pass, or a hand that edits a text, can make.
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compile/ir/program.h"

namespace sherd::testing {

using namespace ir;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(engine_); }

 private:
  std::mt19937_64 engine_;
};

struct Corruption {
  const char* name;
  /// Whether verify() must refuse it without knowing the sound program.
  bool is_of_order;
  /// False if this draw hits nothing that it could change.
  bool (*apply)(Program& program, Dice& dice);
};

const std::vector<Corruption>& corruptions();

/// A digit of the text becomes another one, or true becomes false.
std::string altered(std::string text, Dice& dice);

}  // namespace sherd::testing
