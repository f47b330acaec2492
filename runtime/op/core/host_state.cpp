#include "runtime/op/core/host_state.h"

#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/core/step_names.h"
#include "runtime/tensor/indices.h"

namespace sherd {

StateCells::StateCells(const AttrKind& kind, const void* object, Label label, const void* owner)
    : kind_(kind), object_(object), label_(label), owner_(owner) {}

StateCells::~StateCells() {
  registered_.note_change();
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
    cell->home = registered_.home();
    name_setting(cell, name_of(field));
  }
  return cell;
}

void StateCells::note_read(std::size_t field) const {
  if (const auto cell = setting(field)) RankContext::current().capture->setting_read(cell);
}

void StateCells::changed(std::size_t field) const {
  if (!cells_.empty() && cells_[field]) {
    cells_[field]->text = text_of(field);
    registered_.note_change();
  }
  const RankContext* const context = RankContext::current_or_null();  // who has the object may be no rank
  if (context && context->capture)
    if (const auto cell = setting(field)) context->capture->setting_changed(cell);
}

namespace {
std::vector<void (*)()>& made_on_asking() {
  static std::vector<void (*)()> list;
  return list;
}
}  // namespace

MadeOnAsking::MadeOnAsking(void (*make)()) { made_on_asking().push_back(make); }

std::shared_ptr<const StepSetting> setting_called(std::string_view name) {
  if (auto known = find_setting(name)) return known;
  for (void (*const make)() : made_on_asking()) make();
  for (const StateCells* cells : Registered<StateCells>::living())
    for (const std::size_t field : indices(cells->kind().fields))
      if (cells->name_of(field) == name) return cells->setting(field);
  return nullptr;
}

}  // namespace sherd
