#pragma once
// The units that the modules of a wrap read while they compute: its own, and those of others that it shares parameters
// with. They are read in rounds, from the first of its modules that runs to the last: usually there is one module.
#include <memory>
#include <vector>

#include "nn/parallel/shard/wrap/unit.h"

namespace sherd::nn {

class Wrap;

class UnitUse {
 public:
  /// Has the own units of `wrap`, which outlives this.
  explicit UnitUse(const Wrap& wrap) : wrap_(wrap) {}

  bool is_none() const;
  /// Uses a unit of another wrap too.
  void borrow(Wrap& owner, Unit& unit);
  bool borrows(const Unit& unit) const;
  /// Lets go of what is borrowed, unless a round is open.
  void forget_borrowed();

  void prefetch() const;
  void unshard() const;

  bool is_open() const { return !awaited_.empty(); }
  void begin();
  /// The forward of `module` ends: returns whether it is the last of the round.
  bool ends_with(const Module& module);
  /// Ends the round, and reshards as configured what no other call uses.
  void close();
  /// Ends the round. No-op if none is open.
  void leave();
  /// Ends the round, which an exception leaves.
  void abandon();

 private:
  struct Borrowed {
    std::weak_ptr<Wrap> owner;  // has the unit
    Unit* unit;
  };
  void each(const auto& visit) const;

  const Wrap& wrap_;
  std::vector<Borrowed> borrowed_;
  std::vector<Module*> awaited_;  // those that have not run since the first did
};

}  // namespace sherd::nn
