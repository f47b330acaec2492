#include "compile/run/same_recording.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::Graph, ir::TensorRef, ir::Value, ir::ValueKind;

std::string text_of(const AttrField& field, const void* object) {
  AttrWriter out(false);
  if (field.group) out.fields(*field.group, field.at(object));
  else field.print(object, out);
  return out.take();
}

std::string attrs_difference(AttrsView first, AttrsView second) {
  if (first == second) return {};
  if (first.empty() || second.empty() || !(*first.kind() == *second.kind())) return "its attributes differ";
  for (const AttrField& field : first.kind()->fields)
    if (!field.is_pace && !field.equal(first.object(), second.object()))
      return fmt::format("{} was {} and is {}", field.name.empty() ? "its attributes" : field.name,
                         text_of(field, first.object()), text_of(field, second.object()));
  return {};
}

std::string describe_bytes(DType dtype, const Shape& shape) {
  return fmt::format("{}{}", name(dtype), to_string(shape));
}

std::string where(const ir::Program& program, const ir::GraphNode& node) {
  const std::string row(node.op->name);
  return node.module == ir::kNoModule
             ? row
             : fmt::format("{} in {}", row, program.modules[static_cast<std::size_t>(node.module)]);
}

/// The bytes of a constant as the host sees them.
std::string bytes_of(const Storage& storage) {
  const Tensor all = Tensor::over(Ref<Storage>(const_cast<Storage*>(&storage)), {storage.bytes()}, {1}, 0, DType::u8);
  const Tensor here = to(all, Device::cpu());
  return {static_cast<const char*>(here.raw()), static_cast<std::size_t>(here.bytes())};
}

class Comparison {
 public:
  Comparison(const Graph& first, const Graph& second, std::span<const Tensor> arguments)
      : first_(first), second_(second), arguments_(arguments) {}

  std::string run() {
    const ir::Program &a = first_.program, &b = second_.program;
    const std::size_t common = std::min(a.nodes.size(), b.nodes.size());
    for (const std::size_t n : up_to(common))
      if (std::string text = node_difference(a.nodes[n], b.nodes[n]); !text.empty()) return text;
    if (a.nodes.size() != b.nodes.size()) {
      const bool is_more = b.nodes.size() > common;
      return fmt::format("{} is called {}", where(is_more ? b : a, (is_more ? b : a).nodes[common]),
                         is_more ? "now and was not before" : "no more");
    }
    for (const std::size_t i : up_to(std::min(a.results.size(), b.results.size())))
      if (std::string text = ref_difference(a.results[i].local, b.results[i].local); !text.empty())
        return fmt::format("result {} of the step {}", i, text);
    return a.results.size() != b.results.size() ? "the step returns another number of tensors" : updates_difference();
  }

 private:
  std::string node_difference(const ir::GraphNode& a, const ir::GraphNode& b) {
    const std::string at = where(second_.program, b);
    if (a.op != b.op) return fmt::format("{} is called where {} was", at, where(first_.program, a));
    if (std::string text = attrs_difference(a.attrs, b.attrs); !text.empty()) return fmt::format("{}: {}", at, text);
    if (a.accumulate != b.accumulate)
      return fmt::format("{}: it {} its result", at, b.accumulate ? "now adds to" : "does not add any more to");
    if (first_.live.module(a.module) != second_.live.module(b.module))
      return fmt::format("{} is called where {} was", at, where(first_.program, a));
    std::string text = refs_difference(a.in, b.in, "input");
    if (text.empty()) text = refs_difference(a.out, b.out, "result");
    return text.empty() ? text : fmt::format("{}: {}", at, text);
  }

  template <class Refs>
  std::string refs_difference(const Refs& was, const Refs& is, std::string_view what) {
    if (was.size() != is.size()) return fmt::format("it has {} {}s and had {}", is.size(), what, was.size());
    for (const std::size_t i : indices(was))
      if (std::string text = ref_difference(was[i], is[i]); !text.empty())
        return fmt::format("{} {} {}", what, i, text);
    return {};
  }

  std::string updates_difference() {
    const std::vector<ir::SlotUpdate>&was = first_.program.updates, &is = second_.program.updates;
    const auto name = [&](const ir::SlotUpdate& update) { return second_.program.slot(update.slot).name; };
    for (const std::size_t i : up_to(std::min(was.size(), is.size()))) {
      if (slot_of(first_, was[i].slot) != slot_of(second_, is[i].slot) || was[i].gradient != is[i].gradient)
        return fmt::format("the step sets slot \"{}\" where it set \"{}\"", name(is[i]),
                           first_.program.slot(was[i].slot).name);
      if (std::string text = ref_difference(was[i].result.local, is[i].result.local); !text.empty())
        return fmt::format("what the step leaves in slot \"{}\" {}", name(is[i]), text);
    }
    return was.size() != is.size() ? "the step sets another number of slots" : "";
  }

  std::string ref_difference(const TensorRef& was, const TensorRef& is) {
    if (was.defined() != is.defined()) return is.defined() ? "was left out and is given" : "was given and is left out";
    if (!was.defined()) return {};
    if (was.dtype != is.dtype || was.shape != is.shape)
      return fmt::format("was {} and is {}", describe_bytes(was.dtype, was.shape), describe_bytes(is.dtype, is.shape));
    const Value &a = first_.program.value(was.value), &b = second_.program.value(is.value);
    if (a.kind == ValueKind::argument && b.kind == ValueKind::argument)  // two may have one storage in this call
      return was.strides == is.strides && place_of(a, was) == place_of(b, is) ? "" : "is another tensor";
    if (a.kind == ValueKind::argument && b.kind == ValueKind::constant)
      return fmt::format(
          "is a tensor that the step holds itself, and argument {} was that tensor: use the parameter in the step, or "
          "pass a copy",
          a.source);
    if (was.strides != is.strides || was.offset != is.offset) return "lies otherwise in its bytes";
    if (a.kind != b.kind) return "is another tensor";
    switch (a.kind) {
      case ValueKind::temporary:
        return temporaries_.try_emplace(was.value, is.value).first->second == is.value ? "" : "is another result";
      case ValueKind::slot:
      case ValueKind::gradient: return slot_of(a, first_) == slot_of(b, second_) ? "" : "is of another slot";
      case ValueKind::unit: return first_.live.storage(a) == second_.live.storage(b) ? "" : "is of another unit";
      case ValueKind::constant: return constant_difference(was, a, b);
      case ValueKind::argument: break;
    }
    return {};
  }

  /// Where a tensor in an argument lies in this call.
  std::pair<const Storage*, std::int64_t> place_of(const Value& value, const TensorRef& ref) const {
    const Tensor& argument = arguments_[static_cast<std::size_t>(value.source)];
    return {argument.local().storage().get(), ir::base_bytes(argument) + ref.offset * byte_size(ref.dtype)};
  }
  static const Node* slot_of(const Graph& graph, int slot) {
    return graph.live.slots[static_cast<std::size_t>(slot)].get();
  }
  static const Node* slot_of(const Value& value, const Graph& graph) {
    return slot_of(graph, graph.program.bindings[static_cast<std::size_t>(value.source)].slot);
  }

  // A tensor of the program's own: the same one, or one with the same bytes.
  std::string constant_difference(const TensorRef& was, const Value& a, const Value& b) const {
    const Ref<Storage>&first = first_.live.storage(a), &second = second_.live.storage(b);
    if (first == second) return {};
    if (first->bytes() == second->bytes() && home_of(*first) && home_of(*second))
      return {};  // written before it is read
    if (first->bytes() == second->bytes() && first->device() == second->device() && !first->owner && !second->owner &&
        bytes_of(*first) == bytes_of(*second))
      return {};
    const auto [begin, end] = was.extent();
    const bool is_number = was.shape.empty() && end - begin == byte_size(was.dtype);
    return fmt::format(
        "is a tensor that the program has made anew, with other values{}",
        is_number ? fmt::format(": it was {} and is {}", number(*first, was), number(*second, was)) : "");
  }
  static std::string number(const Storage& storage, const TensorRef& ref) {
    const Tensor all =
        Tensor::over(Ref<Storage>(const_cast<Storage*>(&storage)), ref.shape, ref.strides, ref.offset, ref.dtype);
    return fmt::format("{}", to(all, Device::cpu()).to_vector<double>()[0]);
  }

  const Graph &first_, &second_;
  const std::span<const Tensor> arguments_;
  std::unordered_map<ir::ValueId, ir::ValueId> temporaries_;  // of the first recording: those of the second
};

}  // namespace

bool are_held_alike(const Graph& first, const Graph& second) {
  const std::vector<ir::Binding>&a = first.program.bindings, &b = second.program.bindings;
  return a.size() != b.size() ||
         std::ranges::equal(a, b, {}, &ir::Binding::held_by_slot_only, &ir::Binding::held_by_slot_only);
}

std::string recording_difference(const Graph& first, const Graph& second, std::span<const Tensor> arguments) {
  return Comparison(first, second, arguments).run();
}

}  // namespace sherd
