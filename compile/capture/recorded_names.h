#pragma once
// The tables of a recording: what the program calls by name or number, each once, beside what it stands for here.
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/capture/slots_before.h"
#include "compile/ir/graph.h"

namespace sherd {

class RecordedNames {
 public:
  /// Writes the tables of `program` and `live`.
  RecordedNames(RankContext& context, const SlotsBefore& before, ir::Program& program, ir::Live& live)
      : context_(context), before_(before), program_(program), live_(live) {}

  /// kNoModule for no path.
  ir::ModuleId module(const std::string* path);
  /// kPlain for null.
  ir::LayoutId layout(const Distributed* layout);
  int slot(const Slot& slot);
  void setting_read(const std::shared_ptr<const StepSetting>& setting);
  void setting_changed(const std::shared_ptr<const StepSetting>& setting);
  /// Ends the tables when the step has ended.
  void finish();

 private:
  int add_setting(const std::shared_ptr<const StepSetting>& setting);
  void add_own_settings();
  void forget_local_slots();
  void name_slots();

  RankContext& context_;
  const SlotsBefore& before_;
  ir::Program& program_;
  ir::Live& live_;
  std::unordered_map<const std::string*, ir::ModuleId> modules_;
  std::unordered_map<const Leaf*, int> slots_;
  std::unordered_map<const StepSetting*, int> settings_;          // -1: an own one
  std::vector<std::shared_ptr<const StepSetting>> own_settings_;  // that the step changes, in that order
};

}  // namespace sherd
