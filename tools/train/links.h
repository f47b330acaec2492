#pragma once
// Simulated links between ranks, to measure with: `--link 2e9,20e-6`.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/plan/job_mesh.h"
#include "runtime/comm/group/host_group.h"

namespace sherd::train {

/// The link of one axis of a mesh.
struct AxisLink {
  std::string axis;  ///< empty: of every axis
  LinkShape shape;
};

class Links {
 public:
  /// Ranks communicate as fast as they can.
  Links() = default;
  /// "2e9,20e-6" shapes all axes, "dp=2e9,0;replicate=2e8,0" each its own; "" and "none" none. Error for other text,
  /// for an axis that no mesh has, or that is named twice.
  template <nn::Text T>
  Links(const T& text) : Links(parse(text)) {}  // NOLINT: {.link = "10GB,0"}

  const std::string& text() const { return text_; }
  bool any() const { return !links_.empty(); }
  /// Whether they are of axes by name.
  bool names_axes() const { return any() && !links_[0].axis.empty(); }
  std::span<const AxisLink> each() const { return links_; }
  /// What a group over these axes communicates on: the slowest of their links, as a ring passes them all. Axes of one
  /// rank have none. Nothing if no link is shaped.
  std::optional<LinkShape> over(std::span<const DeviceMesh::Axis> axes) const;
  /// Shapes the groups of the mesh, before their first call. Error for an axis that the mesh does not have.
  void shape(const nn::JobMesh& mesh) const;

  friend bool operator==(const Links& a, const Links& b) { return a.text_ == b.text_; }

 private:
  static Links parse(std::string_view text);
  std::string text_;
  std::vector<AxisLink> links_;
};

}  // namespace sherd::train
