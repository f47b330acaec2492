#include "compile/ir/print.h"

#include <array>

namespace sherd {

namespace {

class Printer {
 public:
  Printer(const Graph& graph, PrintOptions options) : graph_(graph), options_(options) { name_values(); }

  std::vector<std::string> print() {
    std::vector<std::string> text;
    for (std::size_t v = 0; v < graph_.values.size(); ++v) declare(static_cast<ValueId>(v), text);
    for (const GraphSlot& slot : graph_.slots)
      if (slot.drops_grad_first) text.push_back(fmt::format("@{}.grad = none", slot.name));
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) text.push_back(node(i));
    std::string results;
    for (const GraphResult& r : graph_.results) results += (results.empty() ? " " : ", ") + operand(r.local);
    text.push_back("return" + results);
    for (const SlotUpdate& u : graph_.updates)
      text.push_back(
          fmt::format("@{}{} = {}", graph_.slot(u.slot).name, u.gradient ? ".grad" : "", operand(u.result.local)));
    return text;
  }

  // A temporary is made by the first node that writes it.
  std::string node(std::size_t index) {
    const GraphNode& n = graph_.nodes[index];
    std::string text;
    for (const TensorRef& out : n.out) text += (text.empty() ? "" : ", ") + output(out, index);
    if (!n.out.empty()) text += n.accumulate ? " += " : " = ";
    text += n.op->name;
    text += '(';
    for (std::size_t i = 0; i < n.in.size(); ++i)
      text += (i ? ", " : "") + operand(n.in[i]) + (static_cast<int>(i) < n.num_mutated ? "!" : "");
    text += ')';
    if (const std::string attrs = attributes(n); !attrs.empty()) text += " {" + attrs + "}";
    text += data_changes("restores", n.restores) + data_changes("releases", n.releases);
    if (n.module_path && !n.module_path->empty()) text += "  # " + *n.module_path;
    return text;
  }

 private:
  void name_values() {
    std::array<int, 6> counts{};
    constexpr std::array<const char*, 6> sigils{"$", "@", "@", "&", "#", "%"};
    for (const Value& v : graph_.values) {
      const auto kind = static_cast<std::size_t>(v.kind);
      if (v.kind == ValueKind::slot || v.kind == ValueKind::gradient)
        names_.push_back(binding_name(graph_.bindings[static_cast<std::size_t>(v.source)]));
      else names_.push_back(sigils[kind] + std::to_string(counts[kind]++));
    }
    makers_.assign(graph_.values.size(), graph_.nodes.size());
    for (std::size_t i = graph_.nodes.size(); i-- > 0;)
      for (const TensorRef& out : graph_.nodes[i].out)
        if (out.defined()) makers_[static_cast<std::size_t>(out.value)] = i;
  }

  void declare(ValueId id, std::vector<std::string>& text) const {
    const Value& v = graph_.value(id);
    if (v.kind == ValueKind::temporary) return;
    if (v.kind != ValueKind::slot && v.kind != ValueKind::gradient) {
      text.push_back(fmt::format("{} {}", name_of(id), layout(v.home)));
      return;
    }
    for (const Binding& b : graph_.bindings) {
      if (b.value != id) continue;
      const std::string own = binding_name(b);
      const TensorRef ref{id, b.tensor.dtype, b.tensor.shape, b.tensor.strides, b.tensor.offset};
      text.push_back(
          fmt::format("{} {}{}", own, layout(ref), own == name_of(id) ? "" : fmt::format(" in {}", name_of(id))));
    }
  }

  std::string binding_name(const Binding& b) const {
    return fmt::format("@{}{}", graph_.slot(b.slot).name, b.gradient ? ".grad" : "");
  }
  const std::string& name_of(ValueId id) const { return names_[static_cast<std::size_t>(id)]; }

  // "f32[8,4]", then strides and offset where they are not those of a dense tensor at the start.
  std::string layout(const TensorRef& ref) const {
    if (options_.rank_neutral) return fmt::format("{} {}d", name(ref.dtype), ref.shape.size());
    std::string text = fmt::format("{}{}", name(ref.dtype), sherd::to_string(ref.shape));
    if (!is_contiguous(ref.shape, ref.strides)) text += "s" + sherd::to_string(ref.strides);
    if (ref.offset != 0) text += fmt::format("+{}", ref.offset);
    return text;
  }

  std::string operand(const TensorRef& ref) const {
    if (!ref.defined()) return "none";
    const Value& v = graph_.value(ref.value);
    if (options_.rank_neutral || ref == v.home) return name_of(ref.value);
    for (const Binding& b : graph_.bindings)
      if (b.value == ref.value &&
          ref == TensorRef{ref.value, b.tensor.dtype, b.tensor.shape, b.tensor.strides, b.tensor.offset})
        return binding_name(b);
    return fmt::format("{}:{}", name_of(ref.value), layout(ref));
  }

  std::string output(const TensorRef& ref, std::size_t index) const {
    if (!ref.defined()) return "none";
    const bool makes =
        graph_.value(ref.value).kind == ValueKind::temporary && makers_[static_cast<std::size_t>(ref.value)] == index;
    return makes ? fmt::format("{} {}", name_of(ref.value), layout(ref)) : operand(ref);
  }

  std::string attributes(const GraphNode& n) const {
    return options_.rank_neutral ? n.attrs.print_rank_neutral() : n.attrs.print();
  }

  std::string data_changes(std::string_view what, const std::vector<ValueId>& values) const {
    std::string text;
    for (ValueId v : values) text += (text.empty() ? fmt::format(" {} ", what) : ", ") + name_of(v);
    return text;
  }

  const Graph& graph_;
  const PrintOptions options_;
  std::vector<std::string> names_;   // by value
  std::vector<std::size_t> makers_;  // by value: the first node that writes it
};

}  // namespace

std::vector<std::string> lines(const Graph& graph, PrintOptions options) { return Printer(graph, options).print(); }

std::string describe_node(const Graph& graph, std::size_t index) { return Printer(graph, {}).node(index); }

std::string to_string(const Graph& graph) {
  std::string text;
  for (const std::string& line : lines(graph)) text += line + '\n';
  return text;
}

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::uint64_t Graph::hash() const { return hash_text(to_string(*this)); }

}  // namespace sherd
