// One walk in execution order with the state of every value beside it. Rule 6 is decided exactly for dense tensors and
// left to the op for strided ones: interleaved columns overlap as ranges but share no element.
#include "compile/ir/verify.h"

#include <algorithm>

#include "compile/ir/builder.h"
#include "compile/ir/loans.h"
#include "compile/ir/numbers.h"
#include "compile/ir/print.h"

namespace sherd {

namespace {

enum class State : std::uint8_t { unwritten, live, freed, released };

bool overlaps(const TensorRef& a, const TensorRef& b) {
  if (a.value != b.value || !is_contiguous(a.shape, a.strides) || !is_contiguous(b.shape, b.strides)) return false;
  const auto [a_first, a_last] = a.extent();
  const auto [b_first, b_last] = b.extent();
  return a_first < b_last && b_first < a_last;
}

class Verifier {
 public:
  explicit Verifier(const Program& program) : program_(program), states_(program.values.size(), State::live) {
    for (std::size_t v = 0; v < states_.size(); ++v)
      if (program.values[v].kind == ValueKind::temporary) states_[v] = State::unwritten;
  }

  void run() {
    check_externals();
    for (at_ = 0; at_ < program_.nodes.size(); ++at_) check_node(program_.nodes[at_]);
    for (const GraphResult& result : program_.results) check_handed_back(result, "a result");
    for (const SlotUpdate& update : program_.updates) {
      demand(is_slot(update.slot), "an update names slot {} of {}", update.slot, program_.slots.size());
      check_handed_back(update.result, "what a slot gets");
    }
    check_all_freed();
  }

 private:
  template <class... Args>
  void demand(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) [[likely]]
      return;
    Error error("the captured graph is broken: " + fmt::format(format, std::forward<Args>(args)...));
    if (at_ < program_.nodes.size()) error.add("node", fmt::format("{}: {}", at_, printed(at_)));
    throw error;
  }
  // Naming values looks at all nodes, so a graph with a ref to nowhere is not printed.
  std::string printed(std::size_t index) const {
    const auto sound = [&](std::span<const TensorRef> refs) {
      return std::all_of(refs.begin(), refs.end(),
                         [&](const TensorRef& r) { return !r.defined() || is_value(r.value); });
    };
    const GraphNode& node = program_.nodes[index];
    if (!node.op) return "without an op";
    const bool printable = std::all_of(program_.nodes.begin(), program_.nodes.end(),
                                       [&](const GraphNode& n) { return sound(n.in) && sound(n.out); });
    return printable ? describe_node(program_, index) : std::string(node.op->name);
  }
  bool is_value(ValueId id) const { return id >= 0 && static_cast<std::size_t>(id) < program_.values.size(); }
  bool is_slot(int slot) const {
    return slot >= 0 && static_cast<std::size_t>(slot) < program_.slots.size() && !program_.slot(slot).is_local;
  }
  void check_layout(LayoutId id) const {
    demand(id >= kPlain && id < static_cast<LayoutId>(program_.layouts.size()), "layout {} of {}", id,
           program_.layouts.size());
  }
  State& state(ValueId id) { return states_[static_cast<std::size_t>(id)]; }

  void check_externals() const {
    for (const Binding& b : program_.bindings)
      demand(is_slot(b.slot) && is_value(b.value), "a binding names slot {} and value {}", b.slot, b.value);
    for (const Binding& b : program_.bindings) check_layout(b.tensor.layout);
    for (const ArgumentGuard& a : program_.arguments) check_layout(a.tensor.layout);
    for (const GraphSlot& s : program_.slots)
      demand(!s.is_local || !s.drops_grad_first, "slot \"{}\" lives within the step and has an old gradient", s.name);
    for (const Value& v : program_.values) check_source(v);
  }

  void check_source(const Value& v) const {
    if (v.kind == ValueKind::temporary) return demand(v.source == -1, "a temporary names source {}", v.source);
    const std::size_t sources = v.kind == ValueKind::argument   ? program_.arguments.size()
                                : v.kind == ValueKind::unit     ? program_.units.size()
                                : v.kind == ValueKind::constant ? program_.constants.size()
                                                                : program_.bindings.size();
    demand(v.source >= 0 && static_cast<std::size_t>(v.source) < sources, "a value names source {} of {}", v.source,
           sources);
    if (v.kind != ValueKind::slot && v.kind != ValueKind::gradient) return;
    const Binding& binding = program_.bindings[static_cast<std::size_t>(v.source)];
    demand(&v == &program_.value(binding.value) && binding.gradient == (v.kind == ValueKind::gradient),
           "a value's source is a binding of another value");
  }

  void check_ref(const TensorRef& ref) const {
    demand(is_value(ref.value), "a ref names value {} of {}", ref.value, program_.values.size());
    demand(ref.shape.size() == ref.strides.size(), "a ref has shape {} and strides {}", to_string(ref.shape),
           to_string(ref.strides));
    const auto [first, last] = ref.extent();
    demand(first >= 0 && last <= program_.value(ref.value).bytes, "bytes {} to {} of a value that has {}", first, last,
           program_.value(ref.value).bytes);
  }

  // `what` it is, and which of them.
  void check_readable(const TensorRef& ref, std::string_view what, bool may_be_released, std::ptrdiff_t which = -1) {
    check_ref(ref);
    const State s = state(ref.value);
    if (s == State::live || (s == State::released && may_be_released)) [[likely]]
      return;
    const std::string name = which < 0 ? std::string(what) : fmt::format("{} {}", what, which);
    demand(s != State::unwritten, "{} is read before anything was written to it", name);
    demand(s != State::freed, "{} is used after it was freed", name);
    demand(s != State::released, "{} is used after its data was released", name);
  }

  void check_node(const GraphNode& node) {
    demand(node.op != nullptr, "a node has no op");
    demand(!node.op->traits.view, "{} is a view, and views are no nodes", node.op->name);
    const AttrKind* const kind = node.attrs.kind();  // infer reads the struct without asking
    demand(kind ? node.op->attrs && *kind == *node.op->attrs : !node.op->attrs, "attributes are not those of {}",
           node.op->name);
    demand(node.module >= kNoModule && node.module < static_cast<ModuleId>(program_.modules.size()), "module {} of {}",
           node.module, program_.modules.size());
    demand(node.num_mutated >= 0 && static_cast<std::size_t>(node.num_mutated) <= node.in.size(),
           "{} of {} inputs are written in place", node.num_mutated, node.in.size());
    for (std::size_t i = 0; i < node.in.size(); ++i)
      if (node.in[i].defined())
        check_readable(node.in[i], "input", node.op->traits.effect, static_cast<std::ptrdiff_t>(i));
    for (const TensorRef& out : node.out) check_output(node, out);
    const SmallVec<TensorMeta, 4> in = metas_of(program_, node);
    check_infer(node, in);
    check_effects(node, in);
    check_scratch(node, in);
    check_aliases(node);
    for (ValueId v : node.restores) change_presence(v, State::live);
    for (ValueId v : node.releases) change_presence(v, State::released);
    for (ValueId v : node.frees) {
      demand(is_value(v) && program_.value(v).kind == ValueKind::temporary, "value {} is freed and is no temporary", v);
      demand(state(v) == State::live, "value {} is freed and is not live", v);
      state(v) = State::freed;
    }
  }

  void check_output(const GraphNode& node, const TensorRef& out) {
    demand(out.defined(), "an output has no value");
    check_ref(out);
    if (state(out.value) == State::unwritten && !node.accumulate) state(out.value) = State::live;
    else check_readable(out, "an output", node.op->traits.effect);
  }

  void check_infer(const GraphNode& node, const SmallVec<TensorMeta, 4>& in) const {
    Metas metas;
    try {
      metas = node.op->infer({*node.op, in, node.attrs});
    } catch (Error& error) {
      error.add("node", fmt::format("{}: {}", at_, printed(at_)));
      throw;
    }
    demand(metas.size() == node.out.size(), "infer gives {} outputs, the node has {}", metas.size(), node.out.size());
    for (std::size_t i = 0; i < metas.size(); ++i)
      demand(metas[i].shape == node.out[i].shape && metas[i].dtype == node.out[i].dtype,
             "infer gives {}{} for output {}, the node has {}{}", name(metas[i].dtype), to_string(metas[i].shape), i,
             name(node.out[i].dtype), to_string(node.out[i].shape));
  }

  void check_effects(const GraphNode& node, const SmallVec<TensorMeta, 4>& in) const {
    const int mutated = node.op->mutated ? node.op->mutated({*node.op, in, node.attrs}) : 0;
    demand(node.num_mutated == mutated && static_cast<std::size_t>(mutated) <= node.in.size(),
           "a node writes {} of its inputs, its row {}", node.num_mutated, mutated);
  }

  void check_scratch(const GraphNode& node, const SmallVec<TensorMeta, 4>& in) {
    if (node.scratch == kNoValue) return;
    demand(is_value(node.scratch) && state(node.scratch) == State::unwritten,
           "scratch is a temporary that nothing else uses; value {} is none", node.scratch);
    const Device device = device_of(program_, node);
    demand(!device.is_meta(), "a node without a kernel has scratch");
    const Scratch bytes = kernels_of(*node.op).scratch[static_cast<std::size_t>(device.kind)];
    const std::int64_t needed = bytes ? bytes({*node.op, in, node.attrs}) : 0;
    demand(program_.value(node.scratch).bytes >= needed, "scratch has {} bytes, the row asks for {}",
           program_.value(node.scratch).bytes, needed);
    state(node.scratch) = State::live;
  }

  void check_aliases(const GraphNode& node) const {
    const Traits& traits = node.op->traits;
    if (traits.effect || traits.collective) return;
    for (const TensorRef& out : node.out)
      for (const TensorRef& in : node.in) {
        if (!in.defined() || !overlaps(in, out)) continue;
        demand(traits.pointwise && in == out, "output and input overlap, and the op does not work element by element");
      }
  }

  void change_presence(ValueId v, State to) {
    demand(is_value(v) && program_.value(v).kind == ValueKind::unit, "value {} has no data to release or restore", v);
    state(v) = to;
  }

  void check_handed_back(const GraphResult& result, std::string_view what) {
    check_layout(result.layout);
    if (result.local.defined()) check_readable(result.local, what, true);
  }

  void check_all_freed() {
    std::vector<bool> kept(states_.size(), false);
    for (const GraphResult& r : program_.results)
      if (r.local.defined()) kept[static_cast<std::size_t>(r.local.value)] = true;
    for (const SlotUpdate& u : program_.updates)
      if (u.result.local.defined()) kept[static_cast<std::size_t>(u.result.local.value)] = true;
    const std::vector<ValueId> lent = lent_at_end(program_);
    for (const ValueId v : lent)
      kept[static_cast<std::size_t>(v)] =
          kept[static_cast<std::size_t>(v)] || states_[static_cast<std::size_t>(v)] == State::live;
    for (std::size_t v = 0; v < states_.size(); ++v)
      demand(program_.values[v].kind != ValueKind::temporary || kept[v] || states_[v] == State::freed,
             "temporary value {} is never {}", v, states_[v] == State::unwritten ? "written" : "freed");
  }

  const Program& program_;
  std::vector<State> states_;
  std::size_t at_ = ~std::size_t{0};  // node being checked
};

}  // namespace

void verify(const Program& program) {
  Verifier(program).run();
  check_numbers(program);
  check_waits(program);
}

}  // namespace sherd
