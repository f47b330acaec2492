#include "compile/ir/tables.h"

#include <string_view>
#include <unordered_set>

#include "compile/ir/text/words.h"

namespace sherd::ir {

namespace {

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) [[likely]]
    return;
  throw Error("the captured graph is broken: " + fmt::format(format, std::forward<Args>(args)...));
}

class TableChecker {
 public:
  explicit TableChecker(const Program& program) : program_(program) {}

  void run() {
    check_names();
    for (const ArgumentGuard& a : program_.arguments) {
      check_layout(a.tensor.layout);
      const auto before = static_cast<std::ptrdiff_t>(&a - program_.arguments.data());
      demand(a.shares >= -1 && a.shares < before, "argument {} shares the memory of argument {}", before, a.shares);
    }
    check_bindings();
    for (const GraphSlot& s : program_.slots)
      demand(!s.is_local || !s.drops_grad_first, "slot \"{}\" lives within the step and has an old gradient", s.name);
    check_values();
  }

 private:
  void check_layout(LayoutId id) const {
    demand(has_layout(program_, id), "layout {} of {}", id, program_.layouts.size());
  }

  // ---- names ----

  template <class List, class NameOf>
  static void check_unique(std::string_view what, const List& list, const NameOf& name_of, bool may_be_unnamed) {
    std::unordered_set<std::string_view> seen;
    seen.reserve(list.size());
    for (const auto& entry : list)
      if (const std::string& name = name_of(entry); !(may_be_unnamed && name.empty()) && !seen.insert(name).second)
        demand(false, "two {} are called {}", what, quoted(name));
  }
  void check_names() const {
    const auto self = [](const std::string& name) -> const std::string& { return name; };
    const auto of = [](const auto& entry) -> const std::string& { return entry.name; };
    check_unique("modules", program_.modules, self, false);
    check_unique("layouts", program_.layouts, self, false);
    check_unique("settings", program_.settings, of, true);
    check_unique("units", program_.units, self, true);
    check_unique("slots", program_.slots, of, false);
  }

  void check_bindings() const {
    std::vector<std::uint8_t> bound(program_.slots.size(), 0);  // bit 0: its value, bit 1: its gradient
    for (const Binding& b : program_.bindings) {
      demand(has_slot(program_, b.slot) && has_value(program_, b.value), "a binding names slot {} and value {}", b.slot,
             b.value);
      check_layout(b.tensor.layout);
      const std::uint8_t bit = b.gradient ? 2 : 1;
      std::uint8_t& bits = bound[static_cast<std::size_t>(b.slot)];
      demand((bits & bit) == 0, "{}slot \"{}\" is bound twice", b.gradient ? "the gradient of " : "",
             program_.slot(b.slot).name);
      bits |= bit;
      const Value& v = program_.value(b.value);
      demand(v.kind == ValueKind::slot || v.kind == ValueKind::gradient, "slot \"{}\" is bound to a value of no slot",
             program_.slot(b.slot).name);
      demand(v.device == b.tensor.device, "slot \"{}\" is not on the device of its value", program_.slot(b.slot).name);
    }
  }

  // ---- values ----

  void check_values() {
    taken_.arguments.resize(program_.arguments.size());
    taken_.units.resize(program_.units.size());
    taken_.constants.resize(program_.constants.size());
    taken_.bindings.resize(program_.bindings.size());
    for (const Value& v : program_.values) {
      demand(v.bytes >= 0, "a value has {} bytes", v.bytes);
      demand(!v.device.is_meta(), "a value is on meta, where no bytes are");
      demand(!v.is_absent || v.kind == ValueKind::unit, "a value without an owner has no data");
      if (v.kind != ValueKind::temporary) check_source(v);
      else demand(v.source == -1, "a temporary names source {}", v.source);
      if (v.place != kNoValue) check_place(v);
    }
  }

  void check_source(const Value& v) {
    std::vector<bool>& taken = v.kind == ValueKind::argument   ? taken_.arguments
                               : v.kind == ValueKind::unit     ? taken_.units
                               : v.kind == ValueKind::constant ? taken_.constants
                                                               : taken_.bindings;
    demand(v.source >= 0 && static_cast<std::size_t>(v.source) < taken.size(), "a value names source {} of {}",
           v.source, taken.size());
    const auto source = static_cast<std::size_t>(v.source);
    demand(!taken[source], "two values name source {} of one kind", v.source);
    taken[source] = true;
    if (v.kind == ValueKind::argument)
      demand(v.device == program_.arguments[source].tensor.device, "argument {} is not on the device of its value",
             v.source);
    if (v.kind != ValueKind::slot && v.kind != ValueKind::gradient) return;
    const Binding& binding = program_.bindings[source];
    demand(&v == &program_.value(binding.value) && binding.gradient == (v.kind == ValueKind::gradient),
           "a value's source is a binding of another value");
  }

  void check_place(const Value& v) const {
    demand(has_value(program_, v.place), "a place is value {} of {}", v.place, program_.values.size());
    const Value& place = program_.value(v.place);
    demand(
        v.kind == ValueKind::temporary && place.kind == ValueKind::temporary && place.place == kNoValue && &place != &v,
        "a temporary's place is a temporary that has none itself; value {} is none", v.place);
    demand(place.bytes == v.bytes && place.device == v.device,
           "a value of {} bytes has a place of {}, or of another device", v.bytes, place.bytes);
  }

  const Program& program_;
  struct {
    std::vector<bool> arguments, units, constants, bindings;
  } taken_;  // by entry: a value names it
};

}  // namespace

void check_tables(const Program& program) { TableChecker(program).run(); }

}  // namespace sherd::ir
