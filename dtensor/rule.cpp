#include "dtensor/rule.h"

#include <unordered_map>

#include "dtensor/derived.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/ops.h"

namespace sherd {

namespace {

using RuleTable = std::unordered_map<const Op*, ShardingRule>;

RuleTable rules_by_hand() {
  RuleTable table;
  const auto add = [&](const Op& op, const ShardingRule& rule) { table[&op] = rule; };
  register_matmul_rules(add);
  register_reduce_rules(add);
  register_view_rules(add);
  register_index_rules(add);
  register_gather_rules(add);
  register_attention_rules(add);
  register_loss_rules(add);
  register_random_rules(add);
  return table;
}

RuleTable& rules() {
  static RuleTable table = rules_by_hand();
  return table;
}

}  // namespace

const ShardingRule* find_rule(const Op& op) {
  static const ShardingRule derived{.derived = true};
  if (const auto rule = rules().find(&op); rule != rules().end()) return &rule->second;
  return is_derivable(op) ? &derived : nullptr;
}

void register_rule(const Op& op, const ShardingRule& rule) {
  check(rule.signatures != nullptr || rule.derived, "the rule of {} lists no signatures", op.name);
  rules()[&op] = rule;
}

Tensor reduce_over(Tensor local, const DeviceMesh& mesh, std::span<const int> axes, ReduceKind kind) {
  for (int axis : axes) {
    if (mesh.size(axis) == 1) continue;
    local =
        below(op::all_reduce, CollectiveAttrs{.group = name_group(mesh.group(axis)), .kind = static_cast<int>(kind)},
              dense_below(std::move(local)));
  }
  return local;
}

}  // namespace sherd
