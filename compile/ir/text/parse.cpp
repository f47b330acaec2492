// The text declares what it names before it uses it, but for the values of bindings, which are named after bindings,
// and the places of values: those are looked up once all values are there.
#include "compile/ir/text/parse.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <unordered_map>

#include "compile/ir/builder.h"
#include "compile/ir/text/print.h"
#include "compile/ir/text/text_reader.h"
#include "compile/ir/text/words.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/unit/unit_layout.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Program run() {
    in_.expect("program 1\n");
    program_.grad_enabled = !in_.take("no_grad\n");
    program_.has_waits = in_.take("waits\n");
    read_tables();
    while (in_.take("binding ")) read_binding();
    while (in_.take("value ")) read_value();
    find_bound_values();
    in_.expect("nodes\n");
    while (!in_.take("return")) read_node();
    if (in_.take(" ")) {
      do program_.results.push_back(result());
      while (in_.take(", "));
    }
    in_.expect("\n");
    while (!in_.take("end\n")) read_update();
    if (!in_.is_at_end()) in_.refuse("the end of the text");
    return std::move(program_);
  }

 private:
  /// What a name of a value stands for: a value and the ref that its name alone means.
  struct Named {
    ValueId value;
    TensorRef ref;
  };
  /// A value's place may be named before it is known.
  struct PlaceName {
    std::size_t position;
    ValueId value;
    std::string name;
  };
  using Index = std::unordered_map<std::string, int>;
  struct SlotPlace {
    int slot;
    bool gradient;
  };

  // ---- tables ----

  void read_tables() {
    while (in_.take("module ")) {
      program_.modules.push_back(new_name(modules_, in_.name(), false));
      in_.expect("\n");
    }
    while (in_.take("layout ")) {
      program_.layouts.push_back(new_name(layouts_, in_.text_in_quotes(), false));
      in_.expect("\n");
    }
    while (in_.take("setting ")) {
      GraphSetting& setting = program_.settings.emplace_back();
      setting.name = new_name(settings_, in_.text_in_quotes(), true);
      in_.expect(" ");
      setting.text = in_.text_in_quotes();
      in_.expect("\n");
    }
    while (in_.take("unit ")) {
      program_.units.push_back(new_name(units_, in_.text_in_quotes(), true));
      in_.expect("\n");
    }
    while (in_.take("unit_layout ")) read_unit_layout();
    while (in_.take("constant")) read_constant();
    while (in_.take("argument ")) read_argument();
    while (in_.take("slot ")) read_slot();
  }

  // The name that comes next, which its table does not have yet. What nobody has named may stand there twice.
  std::string new_name(Index& index, std::string name, bool may_be_unnamed) {
    const std::size_t position = in_.position();
    const bool is_new = index.try_emplace(name, static_cast<int>(index.size())).second;
    if (!is_new && !(may_be_unnamed && name.empty()))
      in_.fail_at(position, fmt::format("{} stands there twice", quoted(name)));
    return name;
  }

  void read_unit_layout() {
    const std::size_t position = in_.position();
    const std::string name = in_.name();
    in_.expect(" ");
    const std::size_t layout_at = in_.position();
    const std::string_view text = in_.braces();
    UnitLayoutPtr& layout = unit_layouts_[name];
    if (layout) in_.fail_at(position, fmt::format("{} stands there twice", quoted(name)));
    layout = in_.located(layout_at, [&] { return UnitLayout::of_content(parse_unit_layout(text)); });
    in_.expect("\n");
  }

  UnitLayoutPtr unit_layout(const std::string& name) const {
    const auto found = unit_layouts_.find(name);
    return found == unit_layouts_.end() ? nullptr : found->second;
  }

  void read_constant() {
    ConstantContent& content = program_.constants.emplace_back();
    if (in_.take(" hash ")) {
      const std::string_view digits = in_.word();
      const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), content.hash, 16);
      if (digits.size() != 16 || problem != std::errc() || end != digits.data() + digits.size())
        in_.refuse("16 hexadecimal digits before this");
    } else if (in_.take(" bytes ")) {
      content.bytes = in_.hexadecimal();
      content.hash = fnv1a(content.bytes);
    }
    in_.expect("\n");
  }

  void read_argument() {
    ArgumentGuard argument{guard()};
    if (in_.take(" shares ")) {
      if (program_.arguments.empty()) in_.refuse("no sharing, as there is no argument before");
      argument.shares = static_cast<int>(in_.integer(0, static_cast<std::int64_t>(program_.arguments.size()) - 1));
      in_.expect(" shift ");
      argument.shift = in_.integer(-kMostBytes, kMostBytes);
    }
    in_.expect("\n");
    program_.arguments.push_back(argument);
  }

  void read_slot() {
    const std::size_t position = in_.position();
    GraphSlot slot{.name = in_.name()};
    if (!slots_.try_emplace(slot.name, static_cast<int>(program_.slots.size())).second)
      in_.fail_at(position, fmt::format("slot {} stands there twice", quoted(slot.name)));
    for (const SlotFlag& flag : kSlotFlags) slot.*flag.member = in_.take(fmt::format(" {}", flag.name));
    in_.expect("\n");
    program_.slots.push_back(std::move(slot));
  }

  // ---- values ----

  void read_binding() {
    const std::size_t position = in_.position();
    const SlotPlace place = slot_place();
    if (!bindings_.try_emplace(key(place), static_cast<int>(program_.bindings.size())).second)
      in_.fail_at(position, "this slot, or its gradient, is bound twice");
    Binding binding;
    binding.slot = place.slot;
    binding.gradient = place.gradient;
    in_.expect(" in ");
    const std::size_t value_at = in_.position();
    bound_.emplace_back(value_at, value_key());
    in_.expect(" ");
    binding.tensor = guard();
    binding.held_by_slot_only = in_.take(" sole");
    binding.kept = in_.take(" kept");
    in_.expect("\n");
    program_.bindings.push_back(binding);
  }

  void read_value() {
    const std::size_t position = in_.position();
    const auto id = static_cast<ValueId>(program_.values.size());
    Value value;
    const std::string name = value_key(&value);
    if (values_.contains(name)) in_.fail_at(position, "this value stands there twice");
    if (value.kind != ValueKind::slot && value.kind != ValueKind::gradient) check_number(position, value);
    in_.expect(" ");
    if (!in_.take("none")) value.home = read_layout(in_, id);
    in_.expect(" ");
    value.category = read_category(in_);
    value.bytes = in_.take(" bytes ")    ? in_.integer(0, kMostBytes)
                  : value.home.defined() ? value.home.extent().second
                                         : 0;
    if (value.kind == ValueKind::temporary) value.source = -1;
    else if (in_.take(" source ")) value.source = static_cast<int>(in_.integer(0, std::numeric_limits<int>::max()));
    value.is_absent = in_.take(" absent");
    if (in_.take(" place ")) {
      const std::size_t place_at = in_.position();
      places_.push_back({place_at, id, value_key()});
    }
    if (in_.take(" on ")) value.device = read_device(in_);
    in_.expect("\n");
    check_source(position, value);
    values_[name] = {id, value.home};
    program_.values.push_back(value);
  }

  // Values of a kind are numbered in their order.
  void check_number(std::size_t position, const Value& value) {
    int& next = next_number_[static_cast<std::size_t>(value.kind)];
    if (value.source != next) in_.fail_at(position, fmt::format("expected number {} of its kind", next));
    ++next;
  }

  void check_source(std::size_t position, const Value& value) {
    const std::size_t size = value.kind == ValueKind::argument   ? program_.arguments.size()
                             : value.kind == ValueKind::unit     ? program_.units.size()
                             : value.kind == ValueKind::constant ? program_.constants.size()
                                                                 : program_.bindings.size();
    if (value.kind != ValueKind::temporary && static_cast<std::size_t>(value.source) >= size)
      in_.fail_at(position, fmt::format("it is entry {} of a table that has {}", value.source, size));
    if (value.kind != ValueKind::temporary && !sources_.emplace(value.kind, value.source).second)
      in_.fail_at(position, fmt::format("another value is entry {} of its table", value.source));
  }

  // The name that comes next, as a key of values_; into `value`, what the name says of it.
  std::string value_key(Value* value = nullptr) {
    if (in_.sees("@")) {
      const std::size_t position = in_.position();
      const SlotPlace place = slot_place();
      if (value) {
        value->kind = place.gradient ? ValueKind::gradient : ValueKind::slot;
        const auto binding = bindings_.find(key(place));
        if (binding == bindings_.end()) in_.fail_at(position, "no binding of that name comes before");
        value->source = binding->second;
      }
      return key(place);
    }
    constexpr std::pair<char, ValueKind> kinds[] = {
        {'$', ValueKind::argument}, {'&', ValueKind::unit}, {'#', ValueKind::constant}, {'%', ValueKind::temporary}};
    for (const auto& [sigil, kind] : kinds) {
      if (!in_.take({&sigil, 1})) continue;
      const auto number = static_cast<int>(in_.integer(0, std::numeric_limits<int>::max()));
      if (value) {
        value->kind = kind;
        value->source = number;
      }
      return fmt::format("{}{}", sigil, number);
    }
    in_.refuse("a value such as $0, @w, &0, #0 or %0");
  }

  static std::string key(SlotPlace place) { return fmt::format("@{}{}", place.slot, place.gradient ? ".grad" : ""); }

  SlotPlace slot_place() {
    const std::size_t position = in_.position();
    in_.expect("@");
    const bool is_quoted = in_.sees("\"");
    std::string name = in_.name();
    bool gradient = false;
    if (is_quoted) {
      gradient = in_.take(kGradSuffix);
    } else if (name.ends_with(kGradSuffix)) {
      gradient = true;
      name.resize(name.size() - kGradSuffix.size());
    }
    const auto slot = slots_.find(name);
    if (slot == slots_.end()) in_.fail_at(position, fmt::format("there is no slot {}", quoted(name)));
    return {slot->second, gradient};
  }

  void find_bound_values() {
    for (const std::size_t i : indices(bound_)) {
      const auto& [position, name] = bound_[i];
      const auto found = values_.find(name);
      if (found == values_.end()) in_.fail_at(position, "there is no such value");
      program_.bindings[i].value = found->second.value;
    }
    for (const auto& [position, id, name] : places_) {
      const auto found = values_.find(name);
      if (found == values_.end()) in_.fail_at(position, "there is no such value");
      program_.value(id).place = found->second.value;
    }
    for (const Binding& b : program_.bindings) values_.try_emplace(key({b.slot, b.gradient}), Named{b.value, b.ref()});
  }

  const Named& named() {
    const std::size_t position = in_.position();
    const auto found = values_.find(value_key());
    if (found == values_.end()) in_.fail_at(position, "there is no such value");
    return found->second;
  }

  // ---- refs and guards ----

  TensorGuard guard() {
    const TensorRef ref = read_layout(in_, 0);
    TensorGuard guard{
        .dtype = ref.dtype, .shape = ref.shape, .strides = ref.strides, .offset = ref.offset, .global = {}};
    guard.layout = seen_from_outside(" of ", ref.shape, guard.global);
    if (in_.take(" on ")) guard.device = read_device(in_);
    return guard;
  }

  LayoutId seen_from_outside(std::string_view word, const Shape& local, Shape& global) {
    global = local;
    if (!in_.take(word)) return kPlain;
    global = read_shape(in_);
    if (!in_.sees(" \"")) return kPlain;
    in_.expect(" ");
    const std::size_t position = in_.position();
    return index_in(layouts_, in_.text_in_quotes(), position);
  }

  int index_in(const Index& index, const std::string& name, std::size_t position) {
    const auto found = index.find(name);
    if (found == index.end()) in_.fail_at(position, fmt::format("{} is not declared", quoted(name)));
    return found->second;
  }

  TensorRef operand() {
    if (in_.take("none")) return {};
    const std::size_t position = in_.position();
    const Named& found = named();
    if (in_.take(":")) return read_layout(in_, found.value);
    if (!found.ref.defined()) in_.fail_at(position, "this value's layout is not declared");
    return found.ref;
  }

  // A value's layout may follow after a space where a node makes it.
  TensorRef output() {
    if (in_.take("none")) return {};
    const std::size_t position = in_.position();
    const Named& found = named();
    const bool has_layout = in_.sees(" ") && !in_.sees(" = ") && !in_.sees(" += ");
    if (in_.take(":") || (has_layout && in_.take(" "))) return read_layout(in_, found.value);
    if (!found.ref.defined()) in_.fail_at(position, "this value's layout is not declared");
    return found.ref;
  }

  // ---- nodes and what is left at the end ----

  void read_node() {
    GraphNode node;
    const bool has_outputs =
        in_.sees("none") || in_.sees("$") || in_.sees("@") || in_.sees("&") || in_.sees("#") || in_.sees("%");
    if (has_outputs) {
      do node.out.push_back(output());
      while (in_.take(", "));
      node.accumulate = in_.take(" += ");
      if (!node.accumulate) in_.expect(" = ");
    }
    const std::size_t position = in_.position();
    const std::string_view row = in_.word();
    if (row.empty()) in_.refuse("a row's name");
    node.op = in_.located(position, [&] { return &find_op(row); });
    read_inputs(node);
    const bool has_attrs = in_.sees(" {");
    if (has_attrs) in_.expect(" ");
    const std::size_t attrs_at = in_.position();
    const std::string_view attrs = has_attrs ? in_.braces() : std::string_view();
    node.attrs = in_.located(attrs_at, [&] { return parse_attrs(*node.op, attrs, find_unit_layout_); });
    read_tail(node);
    program_.nodes.push_back(std::move(node));
  }

  void read_inputs(GraphNode& node) {
    in_.expect("(");
    if (in_.take(")")) return;
    do {
      node.in.push_back(operand());
      if (in_.take("!") && static_cast<std::size_t>(++node.num_mutated) != node.in.size())
        in_.refuse("! at the first inputs only");
    } while (in_.take(", "));
    in_.expect(")");
  }

  void read_tail(GraphNode& node) {
    node.restores = list(" restores ");
    node.releases = list(" releases ");
    node.frees = list(" frees ");
    if (in_.take(" scratch ")) node.scratch = named().value;
    if (in_.take(" numbers ")) {
      do node.numbers.push_back(static_cast<std::int32_t>(in_.integer(0, std::numeric_limits<std::int32_t>::max())));
      while (in_.take(","));
    }
    if (in_.take(" in ")) {
      const auto phase = std::ranges::find(kPhaseNames, in_.word());
      if (phase == kPhaseNames.end()) in_.refuse("forward, backward or optimizer before this");
      node.phase = static_cast<StepPhase>(phase - kPhaseNames.begin());
    }
    if (in_.take("  # ")) {
      const std::size_t position = in_.position();
      node.module = index_in(modules_, in_.name(), position);
    }
    in_.expect("\n");
  }

  std::vector<ValueId> list(std::string_view word) {
    std::vector<ValueId> values;
    if (!in_.take(word)) return values;
    do values.push_back(named().value);
    while (in_.take(", "));
    return values;
  }

  GraphResult result() {
    GraphResult result{operand(), {}};
    result.layout = seen_from_outside(" as ", result.local.shape, result.shape);
    return result;
  }

  void read_update() {
    const SlotPlace place = slot_place();
    in_.expect(" = ");
    program_.updates.push_back({place.slot, place.gradient, result()});
    in_.expect("\n");
  }

  TextReader in_;
  Program program_;
  Index modules_, layouts_, settings_, units_, slots_;  // by name; of units and settings only whether they are there
  Index bindings_;                                      // by key
  std::set<std::pair<ValueKind, int>> sources_;         // of values that are there
  std::unordered_map<std::string, Named> values_;       // by key
  std::vector<std::pair<std::size_t, std::string>> bound_;  // by binding: where its value's name stands, and its key
  std::vector<PlaceName> places_;
  std::unordered_map<std::string, UnitLayoutPtr> unit_layouts_;  // by the text's name
  const UnitFinder find_unit_layout_ = [this](const std::string& name) { return unit_layout(name); };
  int next_number_[static_cast<int>(ValueKind::temporary) + 1]{};
};

}  // namespace

Program parse(std::string_view text) { return Parser(text).run(); }

void check_round_trip(const Program& program) {
  const std::string written = text(program);
  const Program read = parse(written);
  check(read == program && text(read) == written,
        "the text of a captured program does not read back as that program:\n{}", written);
}

}  // namespace sherd::ir
