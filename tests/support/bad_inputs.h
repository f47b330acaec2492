#pragma once
// Calls of rows with one input that has no bytes: every case of op_cases, every input, every way to have none. What a
// call may do then follows from the columns of its row.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/exec/context.h"
#include "runtime/op/core/dispatch.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

enum class Lacks : std::uint8_t {
  tensor,    ///< an empty handle
  bytes,     ///< its unit has released them
  presence,  ///< a released storage of no bytes at all
};

/// An owner who does not bring anything back.
struct AwayOwner final : StorageOwner {
  void ensure_present(Storage&) override {}
};

/// A dense copy that belongs to `owner`.
inline Tensor owned_copy(const Tensor& t, StorageOwner& owner) {
  Tensor copy = dense_copy(t);
  copy.storage()->owner = &owner;
  return copy;
}

/// Runs `make` as another rank that lives until this goes.
class OtherRank {
 public:
  explicit OtherRank(std::function<void()> make) {
    thread_ = std::jthread([this, make = std::move(make)] {
      const RankScope scope("another rank");
      make();
      made_.set_value();
      end_.get_future().wait();
    });
    made_.get_future().wait();
  }
  ~OtherRank() { end_.set_value(); }

 private:
  std::promise<void> made_, end_;
  std::jthread thread_;
};

struct BadInput {
  const Op& op;
  const OpCase& test_case;
  std::size_t input;
  Lacks lacks;

  std::string text() const {
    return fmt::format("{} {}, input {} without {}", test_case.op, test_case.name, input,
                       lacks == Lacks::tensor ? "a tensor" : "bytes");
  }
  /// Whether the call is right as it is: an input that the row takes as a place, does not need, or only looks at.
  bool may_succeed() const {
    if (lacks == Lacks::tensor) return op.optional == kAnyInput || (input < 32 && (op.optional >> input & 1u));
    return op.traits.view || op.traits.waits || op.residency.restores_input(input, test_case.attrs) ||
           op.residency.releases_input(input, test_case.attrs);
  }
  std::string_view message() const { return lacks == Lacks::tensor ? " is empty" : " is released"; }
  std::vector<Tensor> inputs(StorageOwner& owner) const {
    std::vector<Tensor> all = inputs_of(test_case, DType::f32);
    Tensor& bad = all[input];
    if (lacks == Lacks::tensor) bad = Tensor();
    else (bad = owned_copy(bad, owner)).storage()->release_data();
    return all;
  }
};

/// Calls `visit(bad)` for each.
template <class Visit>
void each_bad_input(const Visit& visit) {
  for (const OpCase& c : op_cases()) {
    if (c.large) continue;
    const Op& op = find_op(c.op);
    const std::vector<Tensor> inputs = inputs_of(c, DType::f32);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || (i > 6 && i + 1 < inputs.size())) continue;  // of a long list some are enough
      visit(BadInput{op, c, i, Lacks::tensor});
      visit(BadInput{op, c, i, inputs[i].bytes() > 0 ? Lacks::bytes : Lacks::presence});
    }
  }
}

/// Expects the Error that names what is missing from `call`, or none where the row needs nothing of the input.
template <class Call>
void expect_refused(const BadInput& bad, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find(bad.message()), std::string_view::npos)
        << bad.text() << ": " << error.what();
    return;
  }
  EXPECT_TRUE(bad.may_succeed()) << bad.text() << ": the call went through";
}

}  // namespace sherd::testing
