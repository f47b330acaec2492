#pragma once
// A group of the ranks of one host: its lanes, its parts, its link.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/board/board_lane.h"
#include "runtime/comm/group/division.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/link.h"

namespace sherd::comm {

/// A group, which is its own lane 0, and the owner of the others.
class BoardGroup final : public BoardLane {
 public:
  /// `kind` is a literal; options.lane is 0. Made by make_shared.
  BoardGroup(std::string_view kind, const std::shared_ptr<std::byte>& memory, const BoardOptions& options,
             std::string name = "world");

  HostGroup& lane(std::string_view queue) override { return lane(lane_numbers_.of(queue)); }
  HostGroup& lane(int index) override;
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override;
  /// If this is a root: the subgroups divided from it, directly or through others, that are alive.
  std::vector<std::shared_ptr<BoardGroup>> living_subgroups() const;

  void reset() override;
  void set_deadline(std::chrono::nanoseconds deadline) override;
  CommCounts counts() const override;
  Lateness lateness() const override;
  void shape_link(const LinkShape& shape) override { link_ = std::make_unique<Link>(shape, size()); }
  /// Null unless it was shaped.
  Link* link() const { return link_.get(); }

 private:
  BoardGroup& root() { return root_ ? *root_ : *this; }

  Division division_;
  std::vector<std::unique_ptr<BoardLane>> lanes_;  // 1, 2, ...
  LaneNumbers lane_numbers_;
  std::unique_ptr<Link> link_;
  std::shared_ptr<BoardGroup> root_;  // of a subgroup
  mutable std::mutex subgroups_mutex_;
  std::vector<std::weak_ptr<BoardGroup>> subgroups_;  // of the root: all divided from it, directly or not
};

}  // namespace sherd::comm
