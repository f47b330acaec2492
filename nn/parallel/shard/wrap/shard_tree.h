#pragma once
// All wraps below one root, which the first module that runs becomes: they share an order of calls, and the end of a
// backward pass.
#include <memory>
#include <string_view>
#include <vector>

#include "nn/parallel/shard/unit/unit_schedule.h"
#include "nn/parallel/shard/wrap/unit.h"

namespace sherd::nn {

class Wrap;

struct ShardTree : std::enable_shared_from_this<ShardTree> {
  std::vector<Wrap*> wraps;  ///< by UnitId: in module order, then who joined later; null once destroyed
  UnitSchedule schedule;
  std::shared_ptr<Unit::BackwardEnd> end =
      std::make_shared<Unit::BackwardEnd>([this] { end_backward(is_last); }, [this] { agree(); });
  int depth = 0;                          ///< of wrapped forwards that run
  bool is_last = true;                    ///< the next backward, of those that belong together
  int num_gathering = 0;                  ///< wraps whose gathers communicate
  bool is_whole = true;                   ///< no module was wrapped below the root since it was linked
  std::vector<std::weak_ptr<Wrap>> late;  ///< those that were without values then
  std::vector<std::weak_ptr<Wrap>> news;  ///< whose units have not been compared with other ranks'

  /// The tree of the nearest wrapped module above that is in one; else null.
  static std::shared_ptr<ShardTree> above(const Module& module);
  /// `module` of `wrap` is about to run: joins the tree above with all that have news, or becomes the root of one. What
  /// goes wrong is told to peers, who are on their way into the first gather.
  static void enter(Wrap& wrap, Module& module);
  /// Whether there are modules that may join.
  bool has_news() const;
  /// Whether a forward communicates: parameters are sharded over ranks.
  bool gathers() const { return num_gathering > 0; }
  /// Compares units that are new with other ranks' (unit_agreement.h). Before any of them communicates.
  void agree();
  /// All are new again. After an error: it may have met some ranks when they had compared, and others just before.
  void compare_again();
  /// The wrap is destroyed.
  void forget(const Wrap& wrap);

  // ---- a step ----

  void begin_forward();
  void end_forward();
  void end_backward(bool is_last_of_all);
  void abandon(std::string_view reason) noexcept;

 private:
  void each(const auto& visit) const;
  void each_unit(const auto& visit) const;
  void add(Wrap& wrap);
  void join(Wrap& wrap, Module& module);
  void begin_at(Wrap& root, Module& module);
};

}  // namespace sherd::nn
