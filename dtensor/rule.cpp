#include "dtensor/rule.h"

#include <algorithm>
#include <unordered_map>

#include "dtensor/derived.h"
#include "runtime/op/ops.h"

namespace sherd {

namespace {

struct RuleTable {
  std::unordered_map<std::string, ShardingRule> by_name;
  RuleTable() {
    static RuleTable* self;
    self = this;
    const AddRule add = [](std::string_view op, const ShardingRule& rule) { self->by_name[std::string(op)] = rule; };
    register_matmul_rules(add);
    register_reduce_rules(add);
    register_view_rules(add);
    register_index_rules(add);
    register_gather_rules(add);
    register_norm_rules(add);
    register_attention_rules(add);
    register_loss_rules(add);
    register_random_rules(add);
  }
};

RuleTable& rules() {
  static RuleTable table;
  return table;
}

}  // namespace

const ShardingRule* find_rule(const Op& op) {
  static const ShardingRule derived{.derived = true};
  const auto& by_name = rules().by_name;
  if (const auto rule = by_name.find(std::string(op.name)); rule != by_name.end()) return &rule->second;
  return is_derivable(op) ? &derived : nullptr;
}

void register_rule(std::string_view op, const ShardingRule& rule) {
  check(rule.signatures != nullptr || rule.derived, "the rule of {} lists no signatures", op);
  rules().by_name[std::string(op)] = rule;
}

Tensors below(const Op& op, const Attrs& attrs, std::span<Tensor> in) {
  OpCall call{op, in, attrs};
  return call_below_dist(call);
}

Tensor reduce_over(Tensor local, const DeviceMesh& mesh, std::span<const int> axes, ReduceKind kind) {
  static const Op& op = find_op("all_reduce");
  static const Op& copy = find_op("copy");
  for (int axis : axes) {
    if (mesh.size(axis) == 1) continue;
    if (local.strides() != contiguous_strides(local.shape())) local = below(copy, {}, std::move(local));
    local = below(op, CollectiveAttrs{.group = &mesh.group(axis), .kind = static_cast<int>(kind)}, std::move(local));
  }
  return local;
}

}  // namespace sherd
