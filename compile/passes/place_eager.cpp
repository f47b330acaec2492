#include "compile/passes/place_eager.h"

#include <algorithm>

#include "compile/ir/analysis/lifetimes.h"
#include "compile/ir/rewrite.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

struct Life {
  int first = -1;
  int last_mention = -1, end = -1;  // as lifetimes.h says
  const GraphNode* maker = nullptr;
  const TensorRef* made = nullptr;
};

std::vector<Life> lives_of(const Program& program) {
  std::vector<Life> lives(program.values.size());
  for (std::size_t i = 0; i < program.nodes.size(); ++i)
    for (const TensorRef& ref : program.nodes[i].out) {
      if (!ref.defined()) continue;
      Life& life = lives[static_cast<std::size_t>(ref.value)];
      if (life.first >= 0) continue;
      life.first = static_cast<int>(i);
      life.maker = &program.nodes[i];
      life.made = &ref;
    }
  const std::vector<int> last = last_mentions(program), ends = ends_of_lives(program);
  for (const std::size_t v : indices(lives)) {
    lives[v].last_mention = last[v];
    lives[v].end = ends[v];
  }
  return lives;
}

// Whether `next` may take over the bytes of `old`: when that is over, or as its last reader writes, where that works
// element by element or is done by a queue, as in eager donation. A queue that writes waits itself for those that read.
bool may_follow(const Program& program, ValueId old, ValueId next, const std::vector<Life>& lives) {
  const Value &a = program.value(old), &b = program.value(next);
  const Life &before = lives[static_cast<std::size_t>(old)], &after = lives[static_cast<std::size_t>(next)];
  if (a.bytes != b.bytes || a.device != b.device || !before.maker || !after.maker) return false;
  if (before.end < after.first) return true;
  if (before.last_mention != after.first) return false;
  const Traits& traits = after.maker->op->traits;
  if (traits.collective) return true;
  return before.end == after.first && traits.pointwise &&
         std::all_of(after.maker->in.begin(), after.maker->in.end(), [&](const TensorRef& in) {
           TensorRef same = *after.made;
           same.value = old;
           return in.value != old || in == same;
         });
}

// What was recorded in no other's bytes, or no longer fits there, writes over an input of its node that is over then,
// as the dispatcher would have it do.
void place_others(const Program& program, const std::vector<Life>& lives, std::vector<ValueId>& holder,
                  std::vector<ValueId>& latest) {
  for (const GraphNode& node : program.nodes) {
    if (!node.op->traits.pointwise || node.accumulate || node.out.size() != 1) continue;
    const ValueId made = node.out[0].value;
    const auto at = static_cast<std::size_t>(made);
    if (holder[at] != made || latest[at] != made || lives[at].maker != &node) continue;
    for (const TensorRef& in : node.in) {
      if (!in.defined() || program.value(in.value).kind != ValueKind::temporary) continue;
      const auto place = static_cast<std::size_t>(holder[static_cast<std::size_t>(in.value)]);
      const bool fits = latest[place] == in.value && program.value(in.value).category == program.value(made).category &&
                        lives[static_cast<std::size_t>(in.value)].last_mention == lives[at].first &&
                        may_follow(program, in.value, made, lives);
      if (!fits) continue;
      holder[at] = static_cast<ValueId>(place);
      latest[place] = made;
      break;
    }
  }
}

}  // namespace

void place_eager(Program& program, bool improves) {
  const std::vector<Life> lives = lives_of(program);
  std::vector<ValueId> holder, latest, followers;
  for (const std::size_t v : indices(program.values)) {
    holder.push_back(static_cast<ValueId>(v));
    if (program.values[v].place != kNoValue) followers.push_back(static_cast<ValueId>(v));
  }
  latest = holder;  // by place: the value that was there last
  std::sort(followers.begin(), followers.end(), [&](ValueId a, ValueId b) {
    return lives[static_cast<std::size_t>(a)].first < lives[static_cast<std::size_t>(b)].first;
  });
  for (const ValueId v : followers) {
    const auto place = static_cast<std::size_t>(program.value(v).place);
    if (!may_follow(program, latest[place], v, lives)) continue;
    holder[static_cast<std::size_t>(v)] = holder[place];
    latest[place] = v;
  }
  if (improves) place_others(program, lives, holder, latest);
  renumber(program, holder);
  settle(program);
}

}  // namespace sherd::ir
