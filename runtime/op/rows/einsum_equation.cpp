#include "runtime/op/rows/einsum_equation.h"

#include <algorithm>
#include <cctype>

#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr std::string_view kEllipsis = "...";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// "subscript j", or the position of a dim of "...".
std::string spell(char label) {
  if (is_letter(label)) return fmt::format("subscript {}", label);
  return fmt::format("dim {} of the ellipsis", -1 - (label - '0'));
}

// The text between two commas or beside the arrow: letters, and at most one "...".
void check_term(std::string_view term) {
  bool has_ellipsis = false;
  for (std::size_t i = 0; i < term.size(); ++i) {
    if (is_letter(term[i])) continue;
    check(term.substr(i, 3) == kEllipsis, "einsum: subscripts are letters or \"...\", got '{}' in \"{}\"", term[i],
          term);
    check(!has_ellipsis, "einsum: \"{}\" has more than one ellipsis", term);
    has_ellipsis = true;
    i += 2;
  }
}

std::vector<std::string_view> split_terms(std::string_view text) {
  std::vector<std::string_view> terms;
  for (;;) {
    const std::size_t comma = text.find(',');
    terms.push_back(text.substr(0, comma));
    check_term(terms.back());
    if (comma == std::string_view::npos) return terms;
    text.remove_prefix(comma + 1);
  }
}

// The digits of an ellipsis of `count` dims.
EinsumLabels ellipsis_labels(int count) {
  EinsumLabels labels;
  while (count-- > 0) labels += static_cast<char>('0' + count);
  return labels;
}

// The term with `count` digits in place of its ellipsis.
EinsumLabels with_ellipsis(std::string_view term, int count) {
  const std::size_t at = term.find(kEllipsis);
  if (at == std::string_view::npos) return EinsumLabels(term);
  return EinsumLabels(term.substr(0, at)) + ellipsis_labels(count) + EinsumLabels(term.substr(at + kEllipsis.size()));
}

// A label per dim of operand i.
EinsumLabels labels_of(std::string_view term, std::size_t i, const Tensor& operand) {
  const bool has_ellipsis = term.find(kEllipsis) != std::string_view::npos;
  const int letters = static_cast<int>(term.size() - (has_ellipsis ? kEllipsis.size() : 0));
  if (has_ellipsis)
    check(letters <= operand.ndim(), "einsum: \"{}\" names {} dims beside its ellipsis, operand {} has {}", term,
          letters, i, operand.ndim());
  else
    check(letters == operand.ndim(), "einsum: \"{}\" names {} dims, operand {} has {}; \"...\" stands for any others",
          term, letters, i, operand.ndim());
  return with_ellipsis(term, operand.ndim() - letters);
}

// Sizes of labels so far, and those of operand i.
void bind_sizes(EinsumEquation& equation, std::size_t i, const Tensor& operand) {
  const EinsumLabels& labels = equation.inputs[i];
  for (const std::size_t d : indices(labels)) {
    const std::int64_t size = operand.shape()[static_cast<int>(d)];
    const std::size_t first = labels.find(labels[d]);
    check(size == operand.shape()[static_cast<int>(first)],
          "einsum: {} stands twice in operand {}, for sizes {} and {}; a diagonal needs equal ones", spell(labels[d]),
          i, operand.shape()[static_cast<int>(first)], size);
    std::int64_t& known = equation.sizes[static_cast<unsigned char>(labels[d])];
    if (known == -1 || known == 1) known = size;
    check(size == known || size == 1,
          "einsum: {} has size {} in operand {} and {} in one before it; they are equal or one of them is 1",
          spell(labels[d]), size, i, known);
  }
}

// "..." and then the labels that occur once.
EinsumLabels implicit_output(const std::vector<EinsumLabels>& inputs, int ellipsis_dims) {
  EinsumLabels all, output = ellipsis_labels(ellipsis_dims);
  for (const EinsumLabels& labels : inputs) all += labels;
  std::sort(all.begin(), all.end());
  for (char c : all)
    if (is_letter(c) && std::count(all.begin(), all.end(), c) == 1) output += c;
  return output;
}

EinsumLabels explicit_output(const EinsumEquation& equation, std::string_view term, int ellipsis_dims) {
  check_term(term);
  EinsumLabels output = with_ellipsis(term, ellipsis_dims);
  for (char c : output) {
    check(equation.size(c) >= 0, "einsum: {} of the output is in no operand", spell(c));
    check(std::count(output.begin(), output.end(), c) == 1, "einsum: {} stands twice in the output", spell(c));
  }
  return output;
}

}  // namespace

EinsumEquation parse_einsum(std::string_view text, std::span<const Tensor> operands) {
  std::string packed;
  for (char c : text)
    if (!std::isspace(static_cast<unsigned char>(c))) packed += c;
  const std::size_t arrow = packed.find("->");
  const std::vector<std::string_view> terms = split_terms(std::string_view(packed).substr(0, arrow));
  check(terms.size() == operands.size(), "einsum: the equation has {} operands, the call {}", terms.size(),
        operands.size());

  EinsumEquation equation;
  equation.sizes.fill(-1);
  int ellipsis_dims = 0;
  for (const std::size_t i : indices(terms)) {
    check(operands[i].defined(), "einsum: operand {} is undefined", i);
    equation.inputs.push_back(labels_of(terms[i], i, operands[i]));
    bind_sizes(equation, i, operands[i]);
    const auto digits =
        std::count_if(equation.inputs[i].begin(), equation.inputs[i].end(), [](char c) { return !is_letter(c); });
    ellipsis_dims = std::max(ellipsis_dims, static_cast<int>(digits));
  }
  equation.output = arrow == std::string::npos
                        ? implicit_output(equation.inputs, ellipsis_dims)
                        : explicit_output(equation, std::string_view(packed).substr(arrow + 2), ellipsis_dims);
  return equation;
}

}  // namespace sherd
