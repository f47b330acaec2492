#include "runtime/comm/group/process_group.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/op/unit/unit.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {

namespace {

// The name of a group of one, which lives as long as the cases. Real ranks: collective_rows_test.
std::string one_rank() {
  static const std::shared_ptr<ProcessGroup> group = make_single_group();
  return name_group(group);
}

void append(std::vector<Arg>& args, const std::vector<Shape>& shapes, Arg (*kind)(const Shape&)) {
  for (const Shape& s : shapes) args.push_back(kind(s));
}

}  // namespace

void add_optimizer_cases(OpCases& cases) {
  const std::vector<std::pair<std::string, std::vector<Shape>>> lists = {
      {"one", {{5}}}, {"mixed", {{3, 5}, {}, {0, 4}, {33}}}, {"none", {}}, {"large", {{300, 101}, {7}, {20'000}}}};
  for (const auto& [name, shapes] : lists) {
    const int n = static_cast<int>(shapes.size());
    OpCase adamw{.op = "adamw",
                 .name = name,
                 .args = {},
                 .attrs = AdamWAttrs{.count = n, .weight_decay = 0.1},
                 .dense_only = true,
                 .large = name == "large",
                 .floats_only_f64_f32 = true};
    append(adamw.args, shapes, normal);
    append(adamw.args, shapes, normal);
    append(adamw.args, shapes, positive);
    append(adamw.args, shapes, normal);
    append(adamw.args, {{}, {}, {}}, positive);
    cases.push_back(adamw);
    OpCase sgd{.op = "sgd",
               .name = name,
               .args = {},
               .attrs = SgdAttrs{.count = n, .momentum = 0.9},
               .dense_only = true,
               .large = name == "large",
               .floats_only_f64_f32 = true};
    for (int i = 0; i < 3; ++i) append(sgd.args, shapes, normal);
    append(sgd.args, {{}, {}}, positive);
    cases.push_back(sgd);
    // 50 000 squares: the f32 inputs are the same numbers, the sum is f64 in every dtype.
    OpCase power{.op = "power_sum",
                 .name = name,
                 .args = {},
                 .attrs = PowerSumAttrs{2},
                 .dense_only = true,
                 .large = name == "large"};
    append(power.args, shapes, normal);
    cases.push_back(power);
    power.op = "exact_power_sum";
    cases.push_back(power);
    power.op = "power_sum_from";
    power.args.insert(power.args.begin(), absent());
    cases.push_back(power);
  }
  cases.push_back({.op = "exact_total", .name = "words", .args = {ids({kExactWords}, 1 << 20)}, .dense_only = true});
  for (const auto& [name, n] : {std::pair("none", 0), std::pair("one", 1), std::pair("many", 170)}) {
    OpCase counts{.op = "count_step",
                  .name = name,
                  .args = {},
                  .attrs = CountStepAttrs{.count = n},
                  .dense_only = true,
                  .floats_only_f64_f32 = true};
    append(counts.args, std::vector<Shape>(static_cast<std::size_t>(n) + 1), normal);
    cases.push_back(counts);
  }
}

void add_collective_cases(OpCases& cases) {
  for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{
           {"odd", {3, 5}}, {"vector", {7}}, {"empty", {0, 2}}, {"large", {257, 300}}}) {
    const auto add = [&, &label = name, &of = shape](const char* op, const CollectiveAttrs& attrs) {
      cases.push_back({.op = op,
                       .name = label,
                       .args = {normal(of)},
                       .attrs = attrs,
                       .dense_only = true,
                       .large = label == "large"});
    };
    add("all_reduce", {.group = one_rank()});
    add("all_gather", {.group = one_rank(), .rows = shape[0]});
    add("reduce_scatter", {.group = one_rank()});
    if (shape.size() == 2) add("all_to_all", {.group = one_rank(), .rows = shape[0], .split_dim = 1});
    add("broadcast", {.group = one_rank()});
    cases.push_back({.op = "wait", .name = name, .args = {normal(shape)}, .attrs = WaitAttrs{}});
  }
}

void add_unit_cases(OpCases& cases) {
  const UnitLayoutPtr unit = UnitLayout::intern({.name = "a unit", .pieces = {{.shape = {0, 3}}, {.shape = {0}}}});
  const auto add = [&](const std::string& op, std::vector<Arg> args, const Attrs& attrs) {
    cases.push_back({.op = op, .name = "empty", .args = std::move(args), .attrs = attrs, .dense_only = true});
  };
  const Arg bytes{.draw = Draw::bytes, .shape = {0}};
  add("gather_start", {bytes, bytes}, UnitAttrs{unit});
  add("restore", {bytes}, UnitAttrs{unit});
  add("release", {bytes}, UnitAttrs{unit});
  add("buffer", {}, BufferAttrs{{0}});
  add("reduce_start", {bytes}, UnitReduceAttrs{.unit = unit, .scale = 0.5});
  add("replica_sum_start", {}, ReplicaSumAttrs{.unit = unit});
  // Homes that are memory of the host; files are in offload_test.
  const auto of = [](std::int64_t n) { return Arg{.draw = Draw::bytes, .shape = {n}}; };
  const auto copy = [&](const std::string& name, CopyKind kind, std::vector<Arg> args) {
    cases.push_back({.op = "copy_start",
                     .name = name,
                     .args = std::move(args),
                     .attrs = OffloadAttrs{.kind = kind},
                     .dense_only = true});
  };
  copy("fetch of two", CopyKind::fetch, {of(128), of(64), of(5)});
  copy("fetch of nothing", CopyKind::fetch, {of(0), of(0)});
  copy("refresh of nothing", CopyKind::refresh, {of(0), of(0)});  // of others it hangs on versions: see offload_test
  copy("evict of two", CopyKind::evict, {of(64), of(5), of(128)});
}

}  // namespace sherd::testing
