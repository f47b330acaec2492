#include "tests/dtensor/validate/reasons.h"

#include <span>

#include <fnmatch.h>

namespace sherd::testing {

namespace {

// Patterns of the shell: * is anything.
struct Reason {
  const char* op;
  const char* in;  ///< of refusals: of the message
  const char* why;
};

constexpr Reason kMissing[] = {
    {"*_backward", "*P[ma][ixv]*", "gradients are sums, and so are their terms"},
    {"*_backward", "*", "values of the forward call are whole by then: only the gradient comes in terms"},
    {"max", "*", "where every reduced dim has one element only"},
    {"min", "*", "where every reduced dim has one element only"},
    {"any", "*", "where every reduced dim has one element only"},
    {"all", "*", "where every reduced dim has one element only"},
    {"cat", "S?", "of one tensor only"},
    {"cat", "*", "terms join terms: a whole operand beside them is no case that occurs"},
    {"pad_to", "Pm*", "is the gradient of narrow, and gradients are sums"},
    {"rope", "Pm*", "at position 0 only, where nothing turns"},
    {"*_norm", "* P* *", "a weight is a parameter: whole or cut"},
    {"*_norm", "* P*", "a weight is a parameter: whole or cut"},
    {"*cross_entropy_parts", "*", "makes one rank's part of a result: rules call it"},
    {"less*", "*", "nobody compares extrema before they are reduced"},
    {"neg", "Pm*", "integers wrap: the negative of the smallest is no larger than the others"},
    {"mul", "R P", "terms of integers would round where their sum does not, once they are floats"},
    {"mul", "*Pm*", "turns with the sign of the other factor"},
    {"mul_scalar", "Pm*", "turns with the sign of a constant"},
    {"pow_scalar", "*", "depends on the exponent"},
    {"abs", "Pmin", "right for numbers that are not negative only"},
    {"square", "Pmin", "right for numbers that are not negative only"},
    {"log", "Pm*", "increasing for positive numbers only: a term may be anything"},
    {"sqrt", "Pm*", "increasing for positive numbers only: a term may be anything"},
    {"rsqrt", "Pm*", "decreasing for positive numbers only: a term may be anything"},
    {"reciprocal", "Pm*", "decreasing for positive numbers only: a term may be anything"},
    {"div", "Pm* *", "increasing if the divisor is positive, which nobody knows"},
    {"cast", "P*", "terms of integers are masked ids, which nobody casts before they are whole"},
    {"linear", "* * Pm*", "a bias is a parameter, not an extremum"},
    {"leaf_linear", "* * P*", "a bias is a parameter: whole or cut"},
    {"leaf_matmul", "S0 R", "of one leaf only: rows of several are cut within each"},
    {"leaf_weight_grad", "R Pavg", "gradients of leaves are sums, and so are their terms"},
    {"leaf_weight_grad", "S? S?", "of one leaf only: the sum of a leaf is rounded, and so would be its terms"},
    {"dropout", "Pm*", "extrema of activations do not occur"},
    {"scatter*", "Pm* * *", "what is scattered into is an activation or a gradient, not an extremum"},
    {"embedding", "Pm* *", "tables are parameters, or sums of them, but not extrema"},
};

constexpr Reason kRefusals[] = {
    {"*cross_entropy_parts", "*has no sharding rule*", "makes one rank's part of a result: rules call it"},
    {"random_*", "*has no sharding rule*", "a step counter is a number that every rank has: it stays plain"},
};

std::string find(std::span<const Reason> reasons, std::string_view op, std::string_view in) {
  for (const Reason& r : reasons)
    if (::fnmatch(r.op, std::string(op).c_str(), 0) == 0 && ::fnmatch(r.in, std::string(in).c_str(), 0) == 0)
      return r.why;
  return {};
}

}  // namespace

std::string reason_for_missing(std::string_view op, std::string_view in) { return find(kMissing, op, in); }
std::string reason_for_refusal(std::string_view op, std::string_view message) { return find(kRefusals, op, message); }

}  // namespace sherd::testing
