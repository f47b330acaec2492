#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/loss_attrs.h"
#include "runtime/op/rows/norm_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

namespace {

void softmax_cases(OpCases& cases) {
  for (const char* op : {"softmax", "log_softmax"}) {
    const auto add = [&](const std::string& name, const Shape& shape, int dim, bool large = false) {
      cases.push_back({.op = op, .name = name, .args = {normal(shape)}, .attrs = DimAttrs{dim}, .large = large});
      // The derivative row is a function of (grad, y) for any y; y is drawn small, as probabilities and their logs are.
      cases.push_back({.op = std::string(op) + "_backward",
                       .name = name,
                       .args = {normal(shape), unit(shape)},
                       .attrs = DimAttrs{dim},
                       .large = large,
                       .slack = large ? 10.0 : 2.0});
    };
    add("last", {3, 5, 7}, 2);
    add("first", {4, 3}, 0);
    add("middle", {2, 9, 4}, 1);
    add("one", {4, 1}, 1);
    add("vector", {33}, 0);
    add("empty", {0, 3}, 1);
    add("large", {130, 300}, 1, true);
    add("large_first", {300, 130}, 0, true);
  }
}

void norm_cases(OpCases& cases) {
  const auto add = [&](const std::string& name, const Shape& shape, bool weight, bool bias, bool large = false) {
    const Shape last = {shape.back()};
    const Shape rows(std::span(shape.begin(), shape.end() - 1));
    const Arg w = weight ? normal(last) : absent(), b = bias ? normal(last) : absent();
    const NormAttrs attrs{1e-5f};
    const double slack = large ? 20.0 : 4.0;  // dweight sums over all rows; x is divided by a small deviation
    cases.push_back({.op = "layer_norm",
                     .name = name,
                     .args = {normal(shape), w, b},
                     .attrs = attrs,
                     .large = large,
                     .slack = slack});
    cases.push_back({.op = "layer_norm_backward",
                     .name = name,
                     .args = {normal(shape), normal(shape), w, statistic(rows), statistic(rows)},
                     .large = large,
                     .slack = slack});
    if (bias) return;
    cases.push_back(
        {.op = "rms_norm", .name = name, .args = {normal(shape), w}, .attrs = attrs, .large = large, .slack = slack});
    cases.push_back({.op = "rms_norm_backward",
                     .name = name,
                     .args = {normal(shape), normal(shape), w, statistic(rows)},
                     .large = large,
                     .slack = slack});
  };
  add("affine", {3, 5, 9}, true, true);
  add("weight_only", {4, 17}, true, false);
  add("plain", {2, 3, 7}, false, false);
  add("vector", {33}, true, false);
  add("no_rows", {0, 5}, true, false);
  add("large", {400, 129}, true, true, true);
  add("large_weight_only", {400, 129}, true, false, true);
}

void loss_cases(OpCases& cases) {
  const auto add = [&](const std::string& name, const Shape& targets, std::int64_t V, std::int64_t K,
                       std::int64_t ignore, bool large = false) {
    Shape logits = targets, x = targets;
    logits.push_back(V);
    x.push_back(K);
    const CrossEntropyAttrs attrs{ignore};
    cases.push_back({.op = "cross_entropy",
                     .name = name,
                     .args = {normal(logits), ids(targets, V)},
                     .attrs = attrs,
                     .large = large});
    cases.push_back({.op = "cross_entropy_backward",
                     .name = name,
                     .args = {statistic({}), normal(logits), ids(targets, V), statistic(targets), statistic({})},
                     .attrs = attrs,
                     .large = large,
                     .slack = 4});
    if (!targets.empty())
      cases.push_back({.op = "linear_cross_entropy",
                       .name = name,
                       .args = {normal(x), normal({V, K}), ids(targets, V)},
                       .attrs = attrs,
                       .large = large,
                       .slack = 4});
  };
  const auto add_part = [&](const std::string& name, const Shape& targets, std::int64_t here, std::int64_t K,
                            const CrossEntropyAttrs& attrs) {
    Shape logits = targets, x = targets;
    logits.push_back(here);
    x.push_back(K);
    const std::int64_t V = attrs.part.total == 0 ? here : attrs.part.total;
    cases.push_back(
        {.op = "cross_entropy_parts", .name = name, .args = {normal(logits), ids(targets, V)}, .attrs = attrs});
    cases.push_back({.op = "linear_cross_entropy_parts",
                     .name = name,
                     .args = {normal(x), normal({here, K}), ids(targets, V)},
                     .attrs = attrs,
                     .slack = 8});  // sums of exponentials of rounded logits
    if (attrs.part.total == 0) return;
    cases.push_back({.op = "cross_entropy_backward",
                     .name = name,
                     .args = {statistic({}), normal(logits), ids(targets, V), statistic(targets), statistic({})},
                     .attrs = attrs,
                     .slack = 4});
  };
  add_part("whole", {5}, 7, 3, {});
  add_part("first_part", {2, 3}, 5, 4, {.part = {0, 9}});
  add_part("middle_part", {9}, 16, 3, {.ignore_index = 2, .part = {1, 18}});
  add_part("empty_part", {4}, 0, 2, {.part = {6, 6}});
  add("rows", {5}, 7, 3, -100);
  add("batch", {2, 3}, 11, 4, -100);
  add("ignored", {9}, 5, 3, 2);  // one class in five does not count
  add("one_class", {4}, 1, 2, -100);
  add("scalar", {}, 6, 1, -100);
  add("all_ignored", {4}, 1, 2, 0);
  add("large", {300}, 140, 33, 7, true);
}

void rope_cases(OpCases& cases) {
  const auto add = [&](const std::string& name, const Shape& shape, const RopeAttrs& attrs, bool large = false) {
    cases.push_back({.op = "rope", .name = name, .args = {normal(shape)}, .attrs = attrs, .large = large});
  };
  add("heads", {2, 3, 5, 8}, {});
  add("shifted", {1, 2, 4, 6}, {.theta = 500, .first_position = 9});
  add("inverse", {1, 2, 4, 6}, {.theta = 500, .first_position = 9, .inverse = true});
  add("one_position", {1, 1, 1, 2}, {});
  add("empty", {0, 2, 3, 4}, {});
  add("large", {4, 8, 100, 32}, {}, true);
}

void attention_cases(OpCases& cases) {
  struct Form {
    std::string name;
    std::int64_t B, H, G, Tq, Tk, K;
    bool large = false;
  };
  for (const Form& f : std::vector<Form>{{"heads", 2, 2, 2, 5, 5, 4},
                                         {"grouped", 1, 4, 2, 6, 6, 3},
                                         {"one_query", 2, 2, 1, 1, 7, 4},
                                         {"one", 1, 1, 1, 1, 1, 1},
                                         {"later_keys", 1, 2, 2, 3, 8, 5},
                                         {"empty", 0, 2, 1, 3, 3, 4},
                                         {"large", 2, 4, 2, 130, 130, 16, true}})
    for (bool causal : {true, false}) {
      const Shape q = {f.B, f.H, f.Tq, f.K}, k = {f.B, f.G, f.Tk, f.K};
      const AttentionAttrs attrs{.scale = 0.5f, .causal = causal};
      const std::string name = f.name + (causal ? "_causal" : "_full");
      cases.push_back({.op = "scaled_dot_product_attention",
                       .name = name,
                       .args = {normal(q), normal(k), normal(k)},
                       .attrs = attrs,
                       .large = f.large,
                       .slack = 2});
      // The log-sum-exp is drawn too: with any value the row is a function of its inputs.
      cases.push_back({.op = "scaled_dot_product_attention_backward",
                       .name = name,
                       .args = {normal(q), unit(q), unit(k), normal(k), unit(q), statistic({f.B, f.H, f.Tq})},
                       .attrs = attrs,
                       .large = f.large,
                       .slack = f.large ? 20.0 : 4.0});
    }
}

}  // namespace

void add_fused_cases(OpCases& cases) {
  attention_cases(cases);
  softmax_cases(cases);
  norm_cases(cases);
  loss_cases(cases);
  rope_cases(cases);
}

}  // namespace sherd::testing
