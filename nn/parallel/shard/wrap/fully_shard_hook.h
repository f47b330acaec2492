#pragma once
// What modules of a wrap call before and after forward: which hook does what when. What is done then is a function of
// the recorded calls (unit_schedule.h); bytes are moved by unit_buffers.h, gradients by gradient_arrival.h and
// route_run.h.
//
//   before forward   first module to run becomes the root of the tree; gather, register full tensors; gather the next
//   after forward    reshard as configured; hook the outputs' gradients
//   output gradient  (the backward of a call begins) reshard units whose backward is over; gather again if resharded;
//                    gather the next
//   last gradient    of the unit: reduce; reshard, unless the tape still has readers of gathered parameters
//   end of backward  reduce the gradients of units that did not complete, reshard everything
//
// "Gather the next" is what hides communication: it is submitted before the module computes and overlaps with it.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "nn/parallel/shard/wrap/wrap.h"

namespace sherd::nn {

class FullyShardHook final : public ModuleHook {
 public:
  explicit FullyShardHook(std::shared_ptr<Wrap> of) : wrap(std::move(of)) {}

  const std::shared_ptr<Wrap> wrap;

  void before_forward(Module& module) override;
  void after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) override;
  void abandon_forward(Module& module, std::string_view reason) noexcept override;
  void before_materialize(Module&, Device device) override {
    for (const auto& unit : wrap->units) unit->materialize(device);
  }
  void before_cast(Module&, DType dtype) override;
  bool maps_inputs() const override { return wrap->precision().cast_forward_inputs && wrap->precision().param_dtype; }
  bool maps_outputs() const override { return wrap->precision().output_dtype.has_value(); }
  void map_input(Module&, Tensor& tensor, TensorPlace) override {
    cast_floating(tensor, *wrap->precision().param_dtype);
  }
  void map_output(Module&, Tensor& tensor, TensorPlace) override {
    cast_floating(tensor, *wrap->precision().output_dtype);
  }
  /// What is gathered for the module's backward is there when its ops run again.
  bool can_recompute() const override { return true; }
  const DeviceMesh* data_mesh() const override { return &wrap->data().mesh(); }

 private:
  /// A forward that runs, or another method in its place.
  struct Running {
    const Module* module;
    std::uint64_t begun;  // nodes of its own have larger numbers
  };
  bool is_running(const Module& module) const;
  void enter_forward(bool begins);
  UnitSchedule::Call leave_forward(Module& module);

  UnitSchedule::Call forward_call_;  // the last that began
  std::vector<Running> running_;     // the innermost last
};

}  // namespace sherd::nn
