#pragma once
// Throws in the midst of a step: at the n-th op of a scope, or at the first of a name. It stands where a recorder of
// steps would, which is told of every op before it runs, those of backward, the optimizer and communication included.
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/core/op.h"
#include "runtime/tensor/error.h"

namespace sherd::testing {

class OpTrap final : public CaptureSink {
 public:
  /// Throws Error "the trap at ..." there, once; -1: nowhere, it counts. Not while another exception is on its way: the
  /// ops that go back to the state between steps are not counted.
  explicit OpTrap(std::int64_t at) : OpTrap(at, "") {}
  explicit OpTrap(std::string_view op) : OpTrap(-1, op) {}
  ~OpTrap() { RankContext::current().capture = outer_; }
  OpTrap(const OpTrap&) = delete;
  OpTrap& operator=(const OpTrap&) = delete;
  std::int64_t count() const { return count_; }

  void prepare(const Op& op, std::span<const Tensor>) override {
    if (std::uncaught_exceptions() > 0 || std::current_exception()) return;
    const std::int64_t index = count_++;
    if (index != at_ && (op_.empty() || has_thrown_ || op.name != op_)) return;
    has_thrown_ = true;
    fail("the trap at op {}, {}", index, op.name);
  }
  void record(const Op&, AttrsView, std::span<const Tensor>, std::span<const Tensor>, bool) override {}
  bool has_seen(const Storage&) const override { return true; }  // nothing is gathered that is there
  void slot_assigned(Slot&) override {}
  void value_used(const Slot&) override {}
  void grad_used(const Slot&) override {}
  void setting_read(const std::shared_ptr<const StepSetting>&) override {}
  void setting_changed(const std::shared_ptr<const StepSetting>&) override {}
  void refuse_read(const Tensor&, std::string_view) override {}

 private:
  OpTrap(std::int64_t at, std::string_view op)
      : at_(at), op_(op), outer_(std::exchange(RankContext::current().capture, this)) {}

  const std::int64_t at_;
  const std::string op_;
  CaptureSink* const outer_;
  std::int64_t count_ = 0;
  bool has_thrown_ = false;
};

}  // namespace sherd::testing
