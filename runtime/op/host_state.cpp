#include "runtime/op/host_state.h"

#include "runtime/op/attr_text.h"
#include "runtime/op/step_names.h"

namespace sherd {

/// State of the rank context: who has fields that a step may read.
struct KnownStates {
  std::vector<StateCells*> all;

  void add(StateCells& cells) {
    cells.place_ = all.size();
    all.push_back(&cells);
  }
  // The owner may be destroyed after its rank's scope, or on another thread.
  void remove(const StateCells& cells) {
    if (cells.place_ >= all.size() || all[cells.place_] != &cells) return;
    all[cells.place_] = all.back();
    all[cells.place_]->place_ = cells.place_;
    all.pop_back();
  }
};

StateCells::StateCells(const AttrKind& kind, const void* object, Label label, const void* owner)
    : kind_(kind), object_(object), label_(label), owner_(owner) {
  RankContext::current().state<KnownStates>().add(*this);
}

StateCells::~StateCells() {
  if (RankContext* context = RankContext::current_or_null()) {
    context->state<KnownStates>().remove(*this);
    ++context->guarded_changes;
  }
  for (const auto& cell : cells_)
    if (cell) cell->text = "gone";  // a recording that has read it keeps the cell
}

std::string StateCells::name_of(std::size_t field) const {
  return fmt::format("{} {}", label_(owner_), kind_.fields[field].name);
}

std::string StateCells::text_of(std::size_t field) const {
  AttrWriter out(false);
  kind_.fields[field].print(object_, out);
  return out.take();
}

std::shared_ptr<const StepSetting> StateCells::setting(std::size_t field) const {
  if (kind_.fields[field].seen != SeenBy::guard) return nullptr;
  cells_.resize(kind_.fields.size());
  std::shared_ptr<StepSetting>& cell = cells_[field];
  if (!cell) {
    cell = std::make_shared<StepSetting>(text_of(field));
    name_setting(cell, name_of(field));
  }
  return cell;
}

void StateCells::note_read(std::size_t field) const {
  if (const auto cell = setting(field)) RankContext::current().capture->setting_read(cell);
}

void StateCells::changed(std::size_t field) const {
  RankContext& context = RankContext::current();
  if (!cells_.empty() && cells_[field]) {
    cells_[field]->text = text_of(field);
    ++context.guarded_changes;
  }
  if (CaptureSink* const capture = context.capture)
    if (const auto cell = setting(field)) capture->setting_changed(cell);
}

std::shared_ptr<const StepSetting> setting_called(std::string_view name) {
  if (auto known = find_setting(name)) return known;
  for (const StateCells* cells : RankContext::current().state<KnownStates>().all)
    for (std::size_t field = 0; field < cells->kind().fields.size(); ++field)
      if (cells->name_of(field) == name) return cells->setting(field);
  return nullptr;
}

}  // namespace sherd
