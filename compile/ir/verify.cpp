// One walk in execution order with the state of every value beside it.
#include "compile/ir/verify.h"

#include <algorithm>
#include <unordered_map>

#include "compile/ir/analysis/access.h"
#include "compile/ir/analysis/loans.h"
#include "compile/ir/analysis/numbers.h"
#include "compile/ir/analysis/overlap.h"
#include "compile/ir/builder.h"
#include "compile/ir/tables.h"
#include "compile/ir/text/print.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

enum class State : std::uint8_t { unwritten, live, scratch, freed, released };

class Verifier {
 public:
  /// The program's tables are sound.
  explicit Verifier(const Program& program)
      : program_(program), roots_(program), states_(program.values.size(), State::live) {
    for (const std::size_t v : indices(states_))
      if (program.values[v].kind == ValueKind::temporary) states_[v] = State::unwritten;
      else if (program.values[v].is_absent) states_[v] = State::released;
  }

  void run() {
    for (at_ = 0; at_ < program_.nodes.size(); ++at_) check_node(program_.nodes[at_]);
    for (const GraphResult& result : program_.results) check_handed_back(result, "a result");
    for (const SlotUpdate& update : program_.updates) {
      demand(has_slot(program_, update.slot), "an update names slot {} of {}", update.slot, program_.slots.size());
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
                         [&](const TensorRef& r) { return !r.defined() || has_value(program_, r.value); });
    };
    const auto exist = [&](const std::vector<ValueId>& list) {
      return std::all_of(list.begin(), list.end(), [&](ValueId v) { return has_value(program_, v); });
    };
    const GraphNode& node = program_.nodes[index];
    if (!node.op) return "without an op";
    const bool printable = std::all_of(program_.nodes.begin(), program_.nodes.end(), [&](const GraphNode& n) {
      return sound(n.in) && sound(n.out) && exist(n.restores) && exist(n.releases);
    });
    return printable ? describe_node(program_, index) : std::string(node.op->name);
  }
  void check_layout(LayoutId id) const {
    demand(has_layout(program_, id), "layout {} of {}", id, program_.layouts.size());
  }
  State& state(ValueId id) { return states_[static_cast<std::size_t>(id)]; }

  void check_ref(const TensorRef& ref) const {
    demand(has_value(program_, ref.value), "a ref names value {} of {}", ref.value, program_.values.size());
    demand(ref.shape.size() == ref.strides.size(), "a ref has shape {} and strides {}", ref.shape, ref.strides);
    const auto [first, last] = ref.extent();
    demand(first >= 0 && last <= program_.value(ref.value).bytes, "bytes {} to {} of a value that has {}", first, last,
           program_.value(ref.value).bytes);
  }

  /// Why a tensor cannot be read, or, if nothing `reads` it, be written; null if it can.
  const char* obstacle(const TensorRef& ref, bool reads, bool may_be_gone) {
    switch (state(ref.value)) {
      case State::unwritten: return "read before anything was written to it";
      case State::freed: return "used after it was freed";
      case State::scratch: return "used, and is the scratch of a node";
      case State::released: return may_be_gone ? nullptr : "used after its data was released";
      case State::live: break;
    }
    if (!reads || partly_written_.empty()) return nullptr;
    const auto partly = partly_written_.find(ref.value);
    const bool is_written = partly == partly_written_.end() || partly->second.cover(ref.extent());
    return is_written ? nullptr : "read before all of it was written";
  }

  void check_input(const GraphNode& node, std::size_t i) {
    const TensorRef& ref = node.in[i];
    check_ref(ref);
    const char* const problem = obstacle(ref, true, needs_no_data(program_, node, i));
    if (problem) [[unlikely]]
      demand(false, "input {} is {}", i, problem);
    demand(static_cast<int>(i) >= node.num_mutated || !repeats_bytes(ref),
           "input {} is written, and its elements share bytes by strides {}", i, ref.strides);
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
    for (const ValueId v : node.restores) check_presence(v);
    for (const ValueId v : node.releases) check_presence(v);
    for (const std::size_t i : indices(node.in))
      if (node.in[i].defined()) check_input(node, i);
    for (const std::size_t i : indices(node.out)) check_output(node, i);
    check_residency(node);
    const SmallVec<TensorMeta, 4> in = metas_of(program_, node);
    check_infer(node, in);
    check_effects(node, in);
    check_devices(node);
    check_scratch(node, in);
    check_aliases(node);
    for (ValueId v : node.restores) state(v) = State::live;
    for (ValueId v : node.releases) state(v) = State::released;
    for (ValueId v : node.frees) check_free(node, v);
  }

  void check_output(const GraphNode& node, std::size_t i) {
    const TensorRef& out = node.out[i];
    demand(out.defined(), "an output has no value");
    check_ref(out);
    demand(!repeats_bytes(out), "elements of output {} share bytes by strides {}", i, out.strides);
    State& state = this->state(out.value);
    const auto bytes = out.extent();
    if (state == State::unwritten && !node.accumulate) {
      state = State::live;
      if (bytes.first > 0 || bytes.second < program_.value(out.value).bytes) partly_written_[out.value].add(bytes);
      return;
    }
    const char* const problem = obstacle(out, node.accumulate, false);
    if (problem) [[unlikely]]
      demand(false, "output {} is {}", i, problem);
    if (partly_written_.empty()) return;
    if (const auto partly = partly_written_.find(out.value); partly != partly_written_.end()) partly->second.add(bytes);
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
    for (const std::size_t i : indices(metas)) {
      const TensorRef& out = node.out[i];
      demand(metas[i].shape == out.shape && metas[i].dtype == out.dtype,
             "infer gives {}{} for output {}, the node has {}{}", name(metas[i].dtype), metas[i].shape, i,
             name(out.dtype), out.shape);
      demand(is_contiguous(out.shape, out.strides) || out.strides == metas[i].strides || takes_any_strides(node),
             "output {} has strides {}, and the kernel writes it dense", i, out.strides);
    }
  }

  // What a kernel cannot add, a copy adds.
  static bool takes_any_strides(const GraphNode& node) {
    return node.op->traits.any_strides || (node.accumulate && !node.op->traits.accumulates);
  }

  void check_effects(const GraphNode& node, const SmallVec<TensorMeta, 4>& in) const {
    const int mutated = node.op->mutated ? node.op->mutated({*node.op, in, node.attrs}) : 0;
    demand(node.num_mutated == mutated && static_cast<std::size_t>(mutated) <= node.in.size(),
           "a node writes {} of its inputs, its row {}", node.num_mutated, mutated);
  }

  // Numbers of the host mix with tensors of any device, unless they are written. A wait has no kernel of a device.
  void check_devices(const GraphNode& node) const {
    if (node.op->traits.waits) return;
    const Device device = device_of(program_, node);
    const auto check_one = [&](std::string_view what, std::size_t i, const TensorRef& ref, bool may_be_number) {
      if (!ref.defined()) return;
      const Device where = program_.value(ref.value).device;
      if (where == device || (may_be_number && where == Device::cpu() && numel(ref.shape) == 1)) [[likely]]
        return;
      demand(false, "{} {} is on {}, the node runs on {}", what, i, to_string(where), to_string(device));
    };
    for (const std::size_t i : indices(node.out)) check_one("output", i, node.out[i], false);
    if (node.op->device) return;
    for (const std::size_t i : indices(node.in))
      check_one("input", i, node.in[i], static_cast<int>(i) >= node.num_mutated);
  }

  void check_scratch(const GraphNode& node, const SmallVec<TensorMeta, 4>& in) {
    if (node.scratch == kNoValue) return;
    demand(has_value(program_, node.scratch) && state(node.scratch) == State::unwritten,
           "scratch is a temporary that nothing else uses; value {} is none", node.scratch);
    const Device device = device_of(program_, node);
    demand(!device.is_meta(), "a node without a kernel has scratch");
    demand(program_.value(node.scratch).device == device, "scratch is not on {}, where the node runs",
           to_string(device));
    const Scratch bytes = kernels_of(*node.op).scratch[static_cast<std::size_t>(device.kind)];
    const std::int64_t needed = bytes ? bytes({*node.op, in, node.attrs}) : 0;
    demand(program_.value(node.scratch).bytes >= needed, "scratch has {} bytes, the row asks for {}",
           program_.value(node.scratch).bytes, needed);
    state(node.scratch) = State::scratch;
  }

  bool overlap(const TensorRef& a, const TensorRef& b) const {
    return roots_.root(a.value) == roots_.root(b.value) &&
           share_bytes(a, b, roots_.shift(b.value) - roots_.shift(a.value));
  }

  void check_aliases(const GraphNode& node) const {
    const Traits& traits = node.op->traits;
    if (traits.effect || traits.collective) return;
    for (std::size_t i = 0; i < node.out.size(); ++i) {
      const TensorRef& out = node.out[i];
      for (const TensorRef& in : node.in)
        demand(!in.defined() || (traits.pointwise && in == out) || !overlap(in, out),
               "output and input overlap, and the op does not work element by element");
      for (const std::size_t other : up_to(i))
        demand(!overlap(node.out[other], out), "outputs {} and {} overlap", other, i);
    }
  }

  void check_presence(ValueId v) const {
    demand(has_value(program_, v) && program_.value(v).kind == ValueKind::unit,
           "value {} has no data to release or restore", v);
  }

  // A node says what its row's column brings of what was gone, and frees of what was there.
  void check_residency(const GraphNode& node) {
    if (!node.op->traits.effect && node.restores.empty() && node.releases.empty()) return;
    std::vector<Access> accesses;
    append_accesses(program_, roots_, node, accesses);
    const auto check_changes = [&](AccessKind kind, State from, const std::vector<ValueId>& listed,
                                   std::string_view what, std::string_view was) {
      std::size_t changed = 0;
      for (const Access& access : accesses) {
        if (access.kind != kind || state(access.value) != from) continue;
        ++changed;
        demand(std::ranges::find(listed, access.value) != listed.end(),
               "input {} is {} before the node, which does not say that it {} it", access.operand, was, what);
      }
      demand(changed == listed.size(), "the node says that it {} the data of {} values, and does so to {}", what,
             listed.size(), changed);
    };
    check_changes(AccessKind::restored, State::released, node.restores, "restores", "absent");
    check_changes(AccessKind::released, State::live, node.releases, "releases", "present");
  }

  void check_free(const GraphNode& node, ValueId v) {
    demand(has_value(program_, v) && program_.value(v).kind == ValueKind::temporary,
           "value {} is freed and is no temporary", v);
    demand(state(v) == State::live || (state(v) == State::scratch && v == node.scratch),
           "value {} is freed and is not live", v);
    state(v) = State::freed;
  }

  // A tensor that is handed back may be one whose data is gone; nothing has read it.
  void check_handed_back(const GraphResult& result, std::string_view what) {
    check_layout(result.layout);
    if (!result.local.defined()) return;
    check_ref(result.local);
    const char* const problem = obstacle(result.local, true, true);
    if (problem) [[unlikely]]
      demand(false, "{} is {}", what, problem);
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
    for (const std::size_t v : indices(states_))
      demand(program_.values[v].kind != ValueKind::temporary || kept[v] || states_[v] == State::freed,
             "temporary value {} is never {}", v, states_[v] == State::unwritten ? "written" : "freed");
  }

  const Program& program_;
  const ByteRoots roots_;
  std::vector<State> states_;
  std::unordered_map<ValueId, ByteRanges> partly_written_;  // temporaries, first written in part
  std::size_t at_ = ~std::size_t{0};                        // node being checked
};

}  // namespace

void verify(const Program& program) {
  check_tables(program);
  Verifier(program).run();
  check_numbers(program);
  check_waits(program);
}

}  // namespace sherd::ir
