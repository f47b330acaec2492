#include "compile/ir/text/print.h"

#include <algorithm>
#include <array>

#include "compile/ir/text/unit_table.h"
#include "compile/ir/text/words.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

enum class Form : std::uint8_t { short_form, rank_neutral, complete };

class Printer {
 public:
  Printer(const Program& program, Form form)
      : program_(program), form_(form), units_(form == Form::complete ? UnitTable(program) : UnitTable()) {
    name_values();
  }

  std::vector<std::string> short_lines() {
    std::vector<std::string> lines;
    for (const std::size_t v : indices(program_.values)) show_external(static_cast<ValueId>(v), lines);
    for (const GraphSlot& slot : program_.slots)
      if (slot.drops_grad_first) lines.push_back(fmt::format("@{}.grad = none", slot.name));
    add_nodes_and_end(lines);
    return lines;
  }

  std::vector<std::string> complete_lines() {
    std::vector<std::string> lines{"program 1"};
    declare_tables(lines);
    for (const Binding& b : program_.bindings)
      lines.push_back(fmt::format("binding {} in {} {}{}{}", binding_name(b), name_of(b.value), guard(b.tensor),
                                  b.held_by_slot_only ? " sole" : "", b.kept ? " kept" : ""));
    for (const std::size_t v : indices(program_.values)) lines.push_back(declaration(static_cast<ValueId>(v)));
    lines.push_back("nodes");
    add_nodes_and_end(lines);
    lines.push_back("end");
    return lines;
  }

  // A temporary is made by the first node that writes it.
  std::string node(std::size_t index) {
    const GraphNode& n = program_.nodes[index];
    std::string line;
    for (const TensorRef& out : n.out) line += (line.empty() ? "" : ", ") + output(out, index);
    if (!n.out.empty()) line += n.accumulate ? " += " : " = ";
    line += n.op->name;
    line += '(';
    for (const std::size_t i : indices(n.in))
      line += (i ? ", " : "") + operand(n.in[i]) + (static_cast<int>(i) < n.num_mutated ? "!" : "");
    line += ')';
    if (const std::string attrs = attributes(n); !attrs.empty()) line += " {" + attrs + "}";
    line += list("restores", n.restores) + list("releases", n.releases);
    if (form_ == Form::complete) {
      line += list("frees", n.frees);
      if (n.scratch != kNoValue) line += " scratch " + name_of(n.scratch);
      if (!n.numbers.empty()) line += fmt::format(" numbers {}", fmt::join(n.numbers, ","));
      if (n.phase != StepPhase::forward) line += fmt::format(" in {}", kPhaseNames[static_cast<std::size_t>(n.phase)]);
    }
    if (n.module != kNoModule) line += "  # " + module_name(n.module);
    return line;
  }

 private:
  void name_values() {
    std::array<int, 6> counts{};
    constexpr std::array<const char*, 6> sigils{"$", "@", "@", "&", "#", "%"};
    for (const Value& v : program_.values) {
      const auto kind = static_cast<std::size_t>(v.kind);
      if (v.kind == ValueKind::slot || v.kind == ValueKind::gradient)
        names_.push_back(binding_name(program_.bindings[static_cast<std::size_t>(v.source)]));
      else names_.push_back(sigils[kind] + std::to_string(counts[kind]++));
    }
    makers_.assign(program_.values.size(), program_.nodes.size());
    for (std::size_t i = program_.nodes.size(); i-- > 0;)
      for (const TensorRef& out : program_.nodes[i].out)
        if (out.defined()) makers_[static_cast<std::size_t>(out.value)] = i;
  }

  // ---- the short form's head ----

  void show_external(ValueId id, std::vector<std::string>& lines) const {
    const Value& v = program_.value(id);
    if (v.kind == ValueKind::temporary) return;
    if (v.kind != ValueKind::slot && v.kind != ValueKind::gradient) {
      lines.push_back(fmt::format("{} {}", name_of(id), layout(v.home)));
      return;
    }
    for (const Binding& b : program_.bindings) {
      if (b.value != id) continue;
      const std::string own = binding_name(b);
      lines.push_back(
          fmt::format("{} {}{}", own, layout(b.ref()), own == name_of(id) ? "" : fmt::format(" in {}", name_of(id))));
    }
  }

  // ---- the complete form's head ----

  void declare_tables(std::vector<std::string>& lines) const {
    if (!program_.grad_enabled) lines.emplace_back("no_grad");
    if (program_.has_waits) lines.emplace_back("waits");
    for (const std::string& name : program_.modules) lines.push_back("module " + plain_or_quoted(name));
    for (const std::string& name : program_.layouts) lines.push_back("layout " + quoted(name));
    for (const GraphSetting& s : program_.settings)
      lines.push_back(fmt::format("setting {} {}", quoted(s.name), quoted(s.text)));
    for (const std::string& name : program_.units) lines.push_back("unit " + quoted(name));
    for (const UnitTable::Entry& unit : units_.entries())
      lines.push_back(fmt::format("unit_layout {} {{{}}}", plain_or_quoted(unit.name), unit.layout->print()));
    for (const ConstantContent& c : program_.constants) lines.push_back("constant" + content(c));
    for (const ArgumentGuard& a : program_.arguments)
      lines.push_back(fmt::format("argument {}{}", guard(a.tensor),
                                  a.shares < 0 ? "" : fmt::format(" shares {} shift {}", a.shares, a.shift)));
    for (const GraphSlot& s : program_.slots) {
      std::string line = "slot " + plain_or_quoted(s.name);
      for (const SlotFlag& flag : kSlotFlags)
        if (s.*flag.member) line += fmt::format(" {}", flag.name);
      lines.push_back(std::move(line));
    }
  }

  static std::string content(const ConstantContent& c) {
    if (c.hash == 0) return {};
    if (c.bytes.empty()) return fmt::format(" hash {:016x}", c.hash);
    std::string line = " bytes ";
    for (const char byte : c.bytes) line += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return line;
  }

  std::string guard(const TensorGuard& g) const {
    std::string line = layout({0, g.dtype, g.shape, g.strides, g.offset});
    line += seen_from_outside(" of ", g.shape, g.global, g.layout);
    if (g.device != Device::cpu()) line += " on " + sherd::to_string(g.device);
    return line;
  }

  // The global shape and the layout, where they are not those of a plain tensor of shape `local`.
  std::string seen_from_outside(std::string_view word, const Shape& local, const Shape& global, LayoutId id) const {
    if (id == kPlain && local == global) return {};
    const std::string name = id == kPlain ? "" : ' ' + quoted(program_.layouts[static_cast<std::size_t>(id)]);
    return fmt::format("{}{}{}", word, sherd::to_string(global), name);
  }

  // Bytes, source and device where they are not what one would expect.
  std::string declaration(ValueId id) const {
    const Value& v = program_.value(id);
    std::string line =
        fmt::format("value {} {} {}", name_of(id), v.home.defined() ? layout(v.home) : "none", sherd::name(v.category));
    if (v.bytes != (v.home.defined() ? v.home.extent().second : 0)) line += fmt::format(" bytes {}", v.bytes);
    const bool is_numbered =
        v.kind == ValueKind::argument || v.kind == ValueKind::unit || v.kind == ValueKind::constant;
    if (is_numbered && name_of(id).substr(1) != std::to_string(v.source)) line += fmt::format(" source {}", v.source);
    if (v.is_absent) line += " absent";
    if (v.place != kNoValue) line += " place " + name_of(v.place);
    if (v.device != Device::cpu()) line += " on " + sherd::to_string(v.device);
    return line;
  }

  // ---- what both end with ----

  void add_nodes_and_end(std::vector<std::string>& lines) {
    for (const std::size_t i : indices(program_.nodes))
      if (form_ != Form::rank_neutral || !program_.nodes[i].op->traits.waits) lines.push_back(node(i));
    std::string results;
    for (const GraphResult& r : program_.results) results += (results.empty() ? " " : ", ") + result(r);
    lines.push_back("return" + results);
    for (const SlotUpdate& u : program_.updates)
      lines.push_back(fmt::format("{} = {}", slot_name(u.slot, u.gradient), result(u.result)));
  }

  std::string result(const GraphResult& r) const {
    const std::string whole =
        form_ == Form::complete ? seen_from_outside(" as ", r.local.shape, r.shape, r.layout) : std::string();
    return operand(r.local) + whole;
  }

  std::string slot_name(int slot, bool gradient) const {
    const std::string& name = program_.slot(slot).name;
    return fmt::format("@{}{}", form_ == Form::complete ? plain_or_quoted(name) : name, gradient ? ".grad" : "");
  }
  std::string binding_name(const Binding& b) const { return slot_name(b.slot, b.gradient); }
  const std::string& name_of(ValueId id) const { return names_[static_cast<std::size_t>(id)]; }
  std::string module_name(ModuleId id) const {
    const std::string& name = program_.modules[static_cast<std::size_t>(id)];
    return form_ == Form::complete ? plain_or_quoted(name) : name;
  }

  // "f32[8,4]", then strides and offset where they are not those of a dense tensor at the start.
  std::string layout(const TensorRef& ref) const {
    if (form_ == Form::rank_neutral) return fmt::format("{} {}d", name(ref.dtype), ref.shape.size());
    std::string line = fmt::format("{}{}", name(ref.dtype), sherd::to_string(ref.shape));
    const bool is_dense =
        form_ == Form::complete ? ref.strides == contiguous_strides(ref.shape) : is_contiguous(ref.shape, ref.strides);
    if (!is_dense) line += "s" + sherd::to_string(ref.strides);
    if (ref.offset != 0) line += fmt::format("+{}", ref.offset);
    return line;
  }

  std::string operand(const TensorRef& ref) const {
    if (!ref.defined()) return "none";
    const Value& v = program_.value(ref.value);
    if (form_ == Form::rank_neutral || ref == v.home) return name_of(ref.value);
    if (v.kind == ValueKind::slot || v.kind == ValueKind::gradient)
      for (const Binding& b : program_.bindings)
        if (b.value == ref.value && ref == b.ref() && binding_name(b) != name_of(ref.value)) return binding_name(b);
    return fmt::format("{}:{}", name_of(ref.value), layout(ref));
  }

  std::string output(const TensorRef& ref, std::size_t index) const {
    if (!ref.defined()) return "none";
    const bool makes =
        program_.value(ref.value).kind == ValueKind::temporary && makers_[static_cast<std::size_t>(ref.value)] == index;
    return makes ? fmt::format("{} {}", name_of(ref.value), layout(ref)) : operand(ref);
  }

  std::string attributes(const GraphNode& n) const {
    if (form_ == Form::rank_neutral) return n.attrs.print_rank_neutral();
    if (form_ == Form::short_form || n.attrs.empty()) return n.attrs.print();
    AttrWriter out(false, [this](const UnitLayout& layout) { return units_.name_of(layout); });
    out.fields(*n.attrs.kind(), AttrsView(n.attrs).object());
    return out.take();
  }

  std::string list(std::string_view what, const std::vector<ValueId>& values) const {
    std::string line;
    for (ValueId v : values) line += (line.empty() ? fmt::format(" {} ", what) : ", ") + name_of(v);
    return line;
  }

  const Program& program_;
  const Form form_;
  const UnitTable units_;            // of the complete form
  std::vector<std::string> names_;   // by value
  std::vector<std::size_t> makers_;  // by value: the first node that writes it
};

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + '\n';
  return all;
}

}  // namespace

std::vector<std::string> lines(const Program& program, PrintOptions options) {
  return Printer(program, options.rank_neutral ? Form::rank_neutral : Form::short_form).short_lines();
}

std::string describe_node(const Program& program, std::size_t index) {
  return Printer(program, Form::short_form).node(index);
}

std::string to_string(const Program& program) { return joined(lines(program)); }

std::string text(const Program& program) { return joined(Printer(program, Form::complete).complete_lines()); }

std::uint64_t Program::hash() const { return fnv1a(to_string(*this)); }

}  // namespace sherd::ir
