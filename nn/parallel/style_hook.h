#pragma once
// Applies a style to one module: redistributes the inputs and outputs of forward() to the style's layouts.
#include <array>
#include <string>
#include <vector>

#include "dtensor/spec.h"
#include "nn/module.h"
#include "nn/parallel/style.h"

namespace sherd::nn {

/// Placements per argument as layouts on a mesh of one axis, made once per number of dims.
class LayoutTable {
 public:
  LayoutTable(const DeviceMesh& mesh, Style::Layouts layouts);
  const Style::Layouts& layouts() const { return layouts_; }
  /// Null: a tensor there passes unchanged. Error for a dim that it does not have.
  const Spec* at(std::size_t index, int ndim);

 private:
  DeviceMesh mesh_;
  Style::Layouts layouts_;
  std::vector<std::array<const Spec*, kMaxDims + 1>> known_;  // [index][ndim]
};

class StyleHook final : public ModuleHook {
 public:
  /// `style`: its name, for messages.
  StyleHook(std::string style, const DeviceMesh& mesh, const Style::Layout& layout);

  bool maps_inputs() const override { return from_.layouts().size() + inputs_.layouts().size() > 0; }
  bool maps_outputs() const override {
    return is_local_ || outputs_from_.layouts().size() + outputs_.layouts().size() > 0;
  }
  void map_input(Module& module, Tensor& tensor, TensorPlace place) override;
  void map_output(Module& module, Tensor& tensor, TensorPlace place) override;
  bool can_recompute() const override { return true; }

 private:
  struct Side {
    const char* what;      // "input"
    const char* from_key;  // the option to set for plain tensors
    LayoutTable &from, &to;
  };
  void map(const Module& module, const Side& side, Tensor& tensor, TensorPlace place) const;

  std::string style_;
  DeviceMesh mesh_;
  LayoutTable from_, inputs_, outputs_from_, outputs_;
  bool is_local_;
};

}  // namespace sherd::nn
