#include "runtime/op/core/dims.h"

#include <algorithm>
#include <cctype>

#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// Letters in brackets are added to `whole`.
DimsTerm parse_term(std::string_view term, std::string_view text, std::string& whole) {
  DimsTerm result;
  if (term.starts_with("...")) {
    result.ellipsis = true;
    term.remove_prefix(3);
  }
  bool in_brackets = false;
  for (char c : term) {
    if (c == '[' || c == ']') {
      check(in_brackets == (c == ']'), "dims \"{}\": brackets stand around letters of one operand", text);
      in_brackets = c == '[';
      continue;
    }
    check(std::isalpha(static_cast<unsigned char>(c)) != 0,
          "dims \"{}\": '{}' is neither a letter nor a leading \"...\"", text, c);
    check(result.letters.find(c) == std::string::npos, "dims \"{}\": '{}' occurs twice in one operand", text, c);
    result.letters += c;
    if (in_brackets && whole.find(c) == std::string::npos) whole += c;
  }
  check(!in_brackets, "dims \"{}\": brackets stand around letters of one operand", text);
  return result;
}

std::vector<DimsTerm> parse_side(std::string_view side, std::string_view text, std::string& whole) {
  std::vector<DimsTerm> terms;
  for (;;) {
    const auto comma = side.find(',');
    terms.push_back(parse_term(side.substr(0, comma), text, whole));
    if (comma == std::string_view::npos) return terms;
    side.remove_prefix(comma + 1);
  }
}

// A letter stands in brackets in every operand that has it, or in none.
void check_whole(const DimsSpec& spec, std::string_view text) {
  check(text.find("[]") == std::string_view::npos, "dims \"{}\": brackets stand around letters of one operand", text);
  bool in_brackets = false;
  for (char c : text) {
    if (c == '[' || c == ']') in_brackets = c == '[';
    else if (spec.whole.find(c) != std::string::npos)
      check(in_brackets, "dims \"{}\": '{}' is in brackets in one operand and not in another", text, c);
  }
}

bool has(const DimsTerm& term, char letter) { return term.letters.find(letter) != std::string::npos; }

std::uint32_t where(std::span<const DimsTerm> terms, char letter) {
  std::uint32_t mask = 0;
  for (const std::size_t i : indices(terms))
    if (has(terms[i], letter)) mask |= 1u << i;
  return mask;
}

std::uint32_t all_of(std::size_t count) { return (1u << count) - 1; }

FactorKind kind_of(const Factor& f, const DimsSpec& spec) {
  if (f.outputs == 0) return FactorKind::contracted;
  if (f.inputs == all_of(spec.inputs.size()) && f.outputs == all_of(spec.outputs.size())) return FactorKind::batch;
  return f.inputs & 1u ? FactorKind::left : FactorKind::right;
}

Factor* find(std::vector<Factor>& factors, char letter) {
  for (Factor& f : factors)
    if (f.letter == letter) return &f;
  return nullptr;
}

// Factors in the order in which the inputs first name them; sizes from the shapes of inputs that are not absent.
void bind_letters(const DimsSpec& spec, std::span<const Shape* const> inputs, std::vector<Factor>& factors) {
  for (const std::size_t i : indices(inputs)) {
    if (!inputs[i]) continue;
    const Shape& shape = *inputs[i];
    const DimsTerm& term = spec.inputs[i];
    const int count = static_cast<int>(term.letters.size()), lead = shape.size() - count;
    check(lead == 0 || (lead > 0 && term.ellipsis), "input {} has shape {}; its dims are \"{}{}\"", i, shape,
          term.ellipsis ? "..." : "", term.letters);
    for (const int d : up_to(count)) {
      const char letter = term.letters[static_cast<std::size_t>(d)];
      const std::int64_t size = shape[lead + d];
      if (const Factor* known = find(factors, letter))
        check(known->size == size, "'{}' has size {} in input {} of shape {}, and {} before", letter, size, i, shape,
              known->size);
      else
        factors.push_back({letter, FactorKind::batch, size, where(spec.inputs, letter), where(spec.outputs, letter)});
    }
  }
}

// The broadcast leading dims, outermost first.
std::vector<Factor> bind_ellipsis(const DimsSpec& spec, std::span<const Shape* const> inputs) {
  Shape lead;
  for (const std::size_t i : indices(inputs))
    if (inputs[i] && spec.inputs[i].ellipsis) {
      const Shape& shape = *inputs[i];
      const auto count = static_cast<std::size_t>(shape.size()) - spec.inputs[i].letters.size();
      lead = broadcast(lead, Shape(std::span(shape.begin(), count)));
    }
  std::vector<Factor> factors;
  for (const int d : indices(lead)) {
    Factor f{'.', FactorKind::batch, lead[d], 0, 0};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i] || !spec.inputs[i].ellipsis) continue;
      const int own = inputs[i]->size() - static_cast<int>(spec.inputs[i].letters.size());
      const int at = d - (lead.size() - own);
      if (at >= 0 && ((*inputs[i])[at] != 1 || lead[d] == 1)) f.inputs |= 1u << i;
    }
    for (std::size_t o = 0; o < spec.outputs.size(); ++o)
      if (spec.outputs[o].ellipsis) f.outputs |= 1u << o;
    factors.push_back(f);
  }
  return factors;
}

}  // namespace

std::string_view name(FactorKind kind) {
  constexpr std::string_view names[] = {"batch", "left", "right", "contracted", "created"};
  return names[static_cast<int>(kind)];
}

DimsSpec parse_dims(std::string_view text) {
  const auto arrow = text.find("->");
  check(arrow != std::string_view::npos && text.find("->", arrow + 2) == std::string_view::npos,
        "dims \"{}\" must have one \"->\"", text);
  DimsSpec spec;
  spec.inputs = parse_side(text.substr(0, arrow), text, spec.whole);
  spec.outputs = parse_side(text.substr(arrow + 2), text, spec.whole);
  check(spec.inputs.size() < 32 && spec.outputs.size() < 32, "dims \"{}\" has more than 31 operands", text);
  for (const DimsTerm& out : spec.outputs)
    check(!out.ellipsis || std::any_of(spec.inputs.begin(), spec.inputs.end(), [](auto& t) { return t.ellipsis; }),
          "dims \"{}\": \"...\" comes from no input", text);
  check_whole(spec, text);
  return spec;
}

BoundDims bind_dims(const DimsSpec& spec, std::span<const Shape* const> inputs) {
  check(inputs.size() == spec.inputs.size(), "{} inputs for dims of {}", inputs.size(), spec.inputs.size());
  BoundDims bound;
  std::vector<Factor> letters;
  bind_letters(spec, inputs, letters);
  bound.factors = bind_ellipsis(spec, inputs);
  const std::size_t num_lead = bound.factors.size();
  bound.factors.insert(bound.factors.end(), letters.begin(), letters.end());
  for (Factor& f : bound.factors) f.kind = kind_of(f, spec);
  for (const DimsTerm& term : spec.outputs) {
    Shape shape;
    if (term.ellipsis)
      for (const std::size_t d : up_to(num_lead)) shape.push_back(bound.factors[d].size);
    for (char letter : term.letters) {
      if (const Factor* f = find(bound.factors, letter)) {
        shape.push_back(f->size);
        continue;
      }
      check(where(spec.inputs, letter) == 0, "'{}' of the output has no size: every input that names it is absent",
            letter);
      bound.factors.push_back({letter, FactorKind::created, -1, 0, where(spec.outputs, letter)});
      shape.push_back(-1);
    }
    bound.outputs.push_back(shape);
  }
  return bound;
}

BoundDims bind_dims(const DimsSpec& spec, MetaList inputs) {
  std::vector<const Shape*> shapes;
  for (const TensorMeta& t : inputs) shapes.push_back(t.defined() ? &t.shape : nullptr);
  return bind_dims(spec, shapes);
}

OpCost op_cost(const Op& op, MetaList in, AttrsView attrs, std::span<const TensorMeta> out) {
  OpCost cost;
  if (op.traits.view) return cost;
  const InferCall call{op, in, attrs};
  const auto num_mutated = static_cast<std::size_t>(op.mutated ? op.mutated(call) : 0);
  std::int64_t largest = 0;
  int num_operands = 0;  // floating inputs of the product, if it is one; indices are not operands
  for (const std::size_t i : indices(in)) {
    const TensorMeta& t = in[i];
    if (t.absent) continue;
    num_operands += is_floating(t.dtype);
    cost.bytes += (i < num_mutated ? 2 : 1) * t.bytes();
    largest = std::max(largest, t.numel());
  }
  for (const TensorMeta& m : out) {
    cost.bytes += m.bytes();
    largest = std::max(largest, m.numel());
  }
  cost.flops = op.flops ? op.flops(call) : static_cast<double>(largest);
  if (op.flops || !op.traits.linear || num_operands < 2 || op.dims.empty()) return cost;
  const BoundDims bound = bind_dims(parse_dims(op.dims), in);
  const bool contracts = std::any_of(bound.factors.begin(), bound.factors.end(),
                                     [](const Factor& f) { return f.kind == FactorKind::contracted; });
  if (!contracts) return cost;
  cost.flops = 2;
  for (const Factor& f : bound.factors)
    if (f.kind != FactorKind::created) cost.flops *= static_cast<double>(f.size);
  return cost;
}

}  // namespace sherd
