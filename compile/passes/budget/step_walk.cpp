// The nodes of a step as a choice of gaps has them, one after the other: what is gone is brought back where it is first
// needed, and a node whose results are there is left out.
#include <algorithm>
#include <limits>
#include <utility>

#include "compile/ir/homes.h"
#include "compile/ir/rewrite.h"
#include "compile/passes/budget/step_model.h"

namespace sherd::ir {

/// An instance is copied to its home, waited for, or brought from there.
enum class Copy : std::uint8_t { none, out, wait, back };

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Seconds of the rank's thread, and of the queue that copies.
struct Clock {
  Clock(const Elsewhere& elsewhere, std::size_t instances) : takes(elsewhere), there_at(instances, 0) {}

  void await(int instance) { now = std::max(now, there_at[at(instance)]); }
  void copy(Copy way, int instance, double bytes) {
    if (way == Copy::wait) return await(instance);
    const Elsewhere::Way& seconds = way == Copy::out ? takes.out : takes.back;
    free_at = there_at[at(instance)] = std::max(now, free_at) + bytes * seconds.queued;
    now += bytes * seconds.own;
    moved += bytes;
  }

  const Elsewhere takes;
  std::vector<double> there_at;  // by instance: when the last copy of it has ended
  double now = 0, free_at = 0, moved = 0;
};

}  // namespace

class StepWalk {
 public:
  /// One run of a node, or a copy. Instances are numbered from 0 as they are made.
  struct Step {
    int node;                            // -1: a copy
    int before;                          // the recorded node that it comes before, or is
    bool repeats;                        // what an earlier one has done
    std::size_t first_read, first_made;  // in lists of instances
    Copy copy = Copy::none;
    int instance = -1;  // that is copied
  };
  struct Instance {
    int held;
    int last;  // step that uses it last
  };

  StepWalk(const StepModel& model, const Choice& choice) : model_(model), choice_(choice) {
    states_.resize(model.held_.size());
    writes_.assign(model.program_.values.size(), 0);
    steps_.reserve(2 * model.work_.size());
    instances_.reserve(2 * model.held_.size());
    used_at_.assign(model.gaps_.size(), {-1, -1});
    leaves_at_ = used_at_;
    present_.assign(model.program_.values.size(), true);
    for (std::size_t v = 0; v < present_.size(); ++v) present_[v] = !model.program_.values[v].is_absent;
  }

  /// False: something cannot be brought back.
  bool run() {
    const auto end = static_cast<int>(model_.work_.size());
    for (int i = 0; i < end && is_possible_; ++i) visit(i);
    for (std::size_t h = 0; h < states_.size() && is_possible_; ++h) {
      const StepModel::Held& held = model_.held_[h];
      if (held.uses.empty() || held.uses.back() != end) continue;
      ensure(static_cast<int>(h));
      left_.push_back({static_cast<int>(h), states_[h].instance});
    }
    for (const auto& [held, instance] : left_) {
      const auto step = static_cast<int>(steps_.size());
      instances_[at(instance)].last = step;
      pass_use(held, end, step - 1);
    }
    return is_possible_;
  }

  StepModel::Load load(std::int64_t limit, bool is_asked) const;
  Program apply() const;

 private:
  struct State {
    int instance = -1;
    int next_use = 0;
    bool is_there = false, has_home = false;
  };

  int donor_of(const Step& step, int index) const;
  void find_gaps(int step, std::vector<int>& gaps) const;
  void append_copy(const Step& step, const GraphNode& beside, Program& program, std::vector<TensorRef>& homes,
                   std::vector<ValueId>& value_of) const;
  void rename(TensorRef& ref, const Step& step, const std::vector<ValueId>& value_of) const;

  void visit(int i) {
    const StepModel::Work& work = model_.work_[at(i)];
    now_ = i;
    for (const int gap : work.backs_from) {
      const StepModel::Gap& of = model_.gaps_[at(gap)];
      const State& state = states_[at(of.held)];
      if (choice_[at(gap)] == Over::away && !state.is_there && state.has_home && state.next_use == of.use)
        fetch(of.held);
    }
    if (!is_left_out(work)) run_node(i, work);
    for (const int gap : work.outs_until)
      if (choice_[at(gap)] == Over::away) end_leaving(gap);
  }

  void run_node(int i, const StepModel::Work& work) {
    for (const int gap : work.gathers_before) {
      used_at_[at(gap)].second = static_cast<int>(steps_.size());
      if (choice_[at(gap)] != Over::gone) continue;
      leaves_at_[at(gap)].first = static_cast<int>(steps_.size());
      act_on_unit(model_.gaps_[at(gap)].gather);
    }
    for (const int gap : work.gathers_late) {
      if (choice_[at(gap)] == Over::brief) act_on_unit(model_.gaps_[at(gap)].gather);
      if (choice_[at(gap)] == Over::gone) leaves_at_[at(gap)].second = static_cast<int>(steps_.size());
    }
    if (work.first == i || is_needed(work)) take(i, work.first != i);
    const int step = static_cast<int>(steps_.size()) - 1;
    for (const int held : work.reads) pass_use(held, i, step);
    for (const int gap : leaving_) begin_leaving(gap);
    leaving_.clear();
    for (const int held : back_)
      if (!has_use(held) || (is_brief(held) && std::ranges::find(work.makes, held) == work.makes.end()))
        states_[at(held)].is_there = false;
    back_.clear();
    for (const ValueId v : work.writes) ++writes_[at(v)];
    change_presence(i);
    for (const int gap : work.releases_after) {
      used_at_[at(gap)].first = static_cast<int>(steps_.size()) - 1;
      if (choice_[at(gap)] != Over::held) act_on_unit(model_.gaps_[at(gap)].release);
    }
  }

  // ---- copies ----

  void copy(Copy way, int instance) {
    instances_[at(instance)].last = static_cast<int>(steps_.size());
    steps_.push_back({-1, now_, false, reads_.size(), made_.size(), way, instance});
  }
  // What has a home already is as it was.
  void begin_leaving(int gap) {
    State& state = states_[at(model_.gaps_[at(gap)].held)];
    if (std::exchange(state.has_home, true)) return;
    leaves_at_[at(gap)].first = static_cast<int>(steps_.size());
    copy(Copy::out, state.instance);
    if (choice_[at(gap)] == Over::apart) end_leaving(gap);
  }
  void end_leaving(int gap) {
    auto& [first, last] = leaves_at_[at(gap)];
    if (first < 0 || last >= 0) return;
    last = static_cast<int>(steps_.size());
    copy(Copy::wait, steps_[at(first)].instance);
  }
  void fetch(int held) {
    State& state = states_[at(held)];
    state.instance = static_cast<int>(instances_.size());
    state.is_there = true;
    instances_.push_back({held, -1});
    if (has_use(held)) used_at_[gap_of(held)].first = static_cast<int>(steps_.size());
    copy(Copy::back, state.instance);
  }
  // The one before the next use of something that has gaps and was used.
  std::size_t gap_of(int held) const { return at(model_.held_[at(held)].first_gap + states_[at(held)].next_use - 1); }

  // Appends a gather or a release like a recorded one.
  void act_on_unit(int i) {
    steps_.push_back({i, now_, false, reads_.size(), made_.size()});
    change_presence(i);
  }

  void change_presence(int i) {
    const GraphNode& node = model_.program_.nodes[at(i)];
    for (const ValueId v : node.restores) present_[at(v)] = true;
    for (const ValueId v : node.releases) present_[at(v)] = false;
  }

  bool is_left_out(const StepModel::Work& work) const {
    const auto is_closed = [&](int gap) { return gap >= 0 && choice_[at(gap)] == Over::held; };
    return is_closed(work.opens) || is_closed(work.closes);
  }

  // Says of a node that was recorded to repeat an earlier one whether it has to.
  bool is_needed(const StepModel::Work& work) const {
    return std::ranges::any_of(work.makes,
                               [&](int held) { return held >= 0 && !states_[at(held)].is_there && has_use(held); });
  }
  // Whether a value that is back goes again, now that the node has run for which it came.
  bool is_brief(int held) const {
    const int gap = model_.held_[at(held)].first_gap, use = states_[at(held)].next_use;
    if (gap < 0 || use == 0) return false;
    const Over over = choice_[at(gap + use - 1)];
    return over == Over::brief || over == Over::apart;
  }
  bool has_use(int held) const { return at(states_[at(held)].next_use) < model_.held_[at(held)].uses.size(); }

  // Appends the node. What it makes is there from now on, unless nobody reads it.
  void take(int i, bool repeats) {
    const StepModel::Work& work = model_.work_[at(i)];
    for (const int held : work.reads) {
      ensure(held);
      if (!is_possible_) return;
    }
    const auto step = static_cast<int>(steps_.size());
    steps_.push_back({i, now_, repeats, reads_.size(), made_.size()});
    for (const int held : work.reads) {
      const int instance = states_[at(held)].instance;
      instances_[at(instance)].last = step;
      reads_.push_back(instance);
    }
    for (const int held : work.makes) {
      made_.push_back(held < 0 ? -1 : static_cast<int>(instances_.size()));
      if (held < 0) continue;
      instances_.push_back({held, step});
      State& state = states_[at(held)];
      if (repeats && state.is_there) continue;  // the other is whole
      state.instance = made_.back();
      state.is_there = has_use(held);
      if (repeats) came_back(held, step);
    }
  }

  void came_back(int held, int step) {
    const int gap = model_.held_[at(held)].first_gap, use = states_[at(held)].next_use;
    if (gap >= 0 && use > 0 && has_use(held)) used_at_[at(gap + use - 1)].first = step;
    back_.push_back(held);
  }

  // Makes the value be there.
  void ensure(int held) {
    State& state = states_[at(held)];
    if (state.is_there) return;
    const StepModel::Held& what = model_.held_[at(held)];
    if (state.has_home && has_use(held) && is_copied(choice_[gap_of(held)])) {
      fetch(held);
      back_.push_back(held);
      return;
    }
    if (!what.can_repeat) {
      is_possible_ = is_possible_ && state.instance >= 0 && what.writers == 1;  // then it is held for longer
      return;
    }
    if (++depth_ > 1000 || !finds_inputs(what.node)) {
      is_possible_ = false;
      return;
    }
    take(what.node, true);
    --depth_;
    if (!is_possible_) return;
    state.is_there = true;
    back_.push_back(held);
  }

  // Whether what is no temporary is there, and is what it was.
  bool finds_inputs(int node) const {
    return std::ranges::all_of(model_.work_[at(node)].outside, [&](const StepModel::Outside& outside) {
      return present_[at(outside.value)] && writes_[at(outside.value)] == outside.writes;
    });
  }

  void pass_use(int held, int node, int step) {
    State& state = states_[at(held)];
    const StepModel::Held& what = model_.held_[at(held)];
    if (!has_use(held) || what.uses[at(state.next_use)] != node) return;
    if (what.first_gap >= 0 && state.next_use > 0) used_at_[at(what.first_gap + state.next_use - 1)].second = step;
    ++state.next_use;
    if (!has_use(held)) {
      state.is_there = false;
    } else if (what.first_gap >= 0) {
      const auto gap = at(what.first_gap + state.next_use - 1);
      used_at_[gap].first = step;
      if (is_copied(choice_[gap]) && state.is_there) leaving_.push_back(static_cast<int>(gap));
      if (choice_[gap] != Over::held) state.is_there = false;
    }
  }

  const StepModel& model_;
  const Choice& choice_;
  std::vector<State> states_;  // by held
  std::vector<int> writes_;    // by value
  std::vector<bool> present_;  // by value
  std::vector<int> back_;      // for the node that is visited
  std::vector<int> leaving_;   // gaps of what is copied after it
  std::vector<Step> steps_;
  std::vector<Instance> instances_;
  std::vector<int> reads_, made_;
  std::vector<std::pair<int, int>> used_at_;  // by gap: the steps of the uses around it
  // By gap: the steps in which it is copied to its home, and has been; in which a unit comes back, and is used.
  std::vector<std::pair<int, int>> leaves_at_;
  std::vector<std::pair<int, int>> left_;  // held and instance, when the step has ended
  int now_ = 0;                            // the recorded node that is visited
  bool is_possible_ = true;
  int depth_ = 0;
};

// Bytes rise by what a step makes and its scratch, and fall by what it is the last to use. What may write over an input
// takes its bytes.
StepModel::Load StepWalk::load(std::int64_t limit, bool is_asked) const {
  StepModel::Load found;
  std::int64_t now = 0;
  for (std::size_t v = 0; v < present_.size(); ++v) {
    const Value& value = model_.program_.values[v];
    if (value.kind == ValueKind::unit && !value.is_absent) now += value.bytes;
  }
  std::vector<std::int64_t> bytes(instances_.size());
  for (std::size_t i = 0; i < instances_.size(); ++i) bytes[i] = model_.held_[at(instances_[i].held)].bytes;
  int peak_step = -1;
  const auto note = [&](std::int64_t most, int step) {
    if (is_asked) found.held.push_back(most);
    if (most > limit) found.excess += static_cast<double>(most - limit);
    if (most <= found.peak) return;
    found.peak = most;
    peak_step = step;
  };
  Clock clock(model_.elsewhere_.value_or(Elsewhere()), instances_.size());
  std::vector<char> gave(instances_.size(), false);
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    if (step.copy != Copy::none) {
      const std::int64_t size = bytes[at(step.instance)];
      clock.copy(step.copy, step.instance, static_cast<double>(size));
      if (step.copy == Copy::back) now += size;
      note(now + model_.beside_[at(step.before)], static_cast<int>(s));
      if (instances_[at(step.instance)].last == static_cast<int>(s)) now -= size;
      continue;
    }
    const StepModel::Work& work = model_.work_[at(step.node)];
    const GraphNode& node = model_.program_.nodes[at(step.node)];
    for (std::size_t r = 0; r < work.reads.size(); ++r) clock.await(reads_[step.first_read + r]);
    clock.now += work.seconds;
    found.moved += work.moved;
    if (!step.repeats)
      for (const ValueId v : node.restores) now += model_.program_.value(v).bytes;
    const int donor = donor_of(step, static_cast<int>(s));
    for (std::size_t o = 0; o < work.makes.size(); ++o)
      if (const int made = made_[step.first_made + o]; made >= 0 && (o > 0 || donor < 0)) now += bytes[at(made)];
    if (donor >= 0) gave[at(donor)] = true;
    note(now + work.scratch + model_.beside_[at(step.before)], static_cast<int>(s));
    const auto end = [&](int instance) {
      if (instance >= 0 && instances_[at(instance)].last == static_cast<int>(s) &&
          !std::exchange(gave[at(instance)], char{1}))
        now -= bytes[at(instance)];
    };
    for (std::size_t r = 0; r < work.reads.size(); ++r) end(reads_[step.first_read + r]);
    for (std::size_t o = 0; o < work.makes.size(); ++o) end(made_[step.first_made + o]);
    if (!step.repeats)
      for (const ValueId v : node.releases) now -= model_.program_.value(v).bytes;
  }
  found.seconds = std::max(clock.now, clock.free_at);
  if (is_asked) find_gaps(peak_step, found.at_peak);
  found.moved += clock.moved;
  return found;
}

// The instance whose bytes the step's output takes; -1: none.
int StepWalk::donor_of(const Step& step, int index) const {
  const StepModel::Work& work = model_.work_[at(step.node)];
  for (const int held : work.donors) {
    const auto r = static_cast<std::size_t>(std::ranges::find(work.reads, held) - work.reads.begin());
    const int instance = reads_[step.first_read + r];
    const StepModel::Held &in = model_.held_[at(held)], &out = model_.held_[at(work.makes[0])];
    if (instances_[at(instance)].last == index && in.bytes == out.bytes && in.category == out.category) return instance;
  }
  return -1;
}

// Gaps over which something is held at a step that is not used there.
void StepWalk::find_gaps(int step, std::vector<int>& gaps) const {
  const auto is_within = [&](const std::pair<int, int>& steps) { return steps.first < step && step < steps.second; };
  for (std::size_t gap = 0; gap < used_at_.size(); ++gap)
    if (is_within(used_at_[gap]) || is_within(leaves_at_[gap])) gaps.push_back(static_cast<int>(gap));
}

Program StepWalk::apply() const {
  Program program = model_.program_;
  const std::vector<GraphNode> recorded = std::exchange(program.nodes, {});
  std::vector<ValueId> value_of(instances_.size(), kNoValue);
  std::vector<TensorRef> homes(model_.held_.size());
  for (const Step& step : steps_) {
    if (step.copy != Copy::none) {
      append_copy(step, recorded[at(step.before)], program, homes, value_of);
      continue;
    }
    const StepModel::Work& work = model_.work_[at(step.node)];
    const bool is_clone = step.repeats && work.first == step.node;
    GraphNode node = recorded[at(step.node)];
    for (TensorRef& in : node.in) rename(in, step, value_of);
    if (is_clone) node = clone_node(program, node);
    if (step.repeats || step.node != step.before) node.phase = recorded[at(step.before)].phase;
    for (std::size_t o = 0; o < node.out.size(); ++o) {
      if (const int made = made_[step.first_made + o]; made >= 0) value_of[at(made)] = node.out[o].value;
      else rename(node.out[o], step, value_of);
    }
    program.nodes.push_back(std::move(node));
  }
  const auto leave = [&](TensorRef& ref) {
    const int held = ref.defined() ? model_.held_of_[at(ref.value)] : -1;
    if (held < 0) return;
    const auto found = std::ranges::find(left_, held, &std::pair<int, int>::first);
    ref.value = value_of[at(found->second)];
  };
  for (GraphResult& result : program.results) leave(result.local);
  for (SlotUpdate& update : program.updates) leave(update.result.local);
  drop_unmentioned(program);
  return program;
}

void StepWalk::append_copy(const Step& step, const GraphNode& beside, Program& program, std::vector<TensorRef>& homes,
                           std::vector<ValueId>& value_of) const {
  const int held = instances_[at(step.instance)].held;
  TensorRef& home = homes[at(held)];
  ValueId& value = value_of[at(step.instance)];
  if (step.copy == Copy::wait) return append_wait(program, beside, value);
  if (step.copy == Copy::out) {
    home = add_home(program, model_.held_[at(held)].bytes, model_.held_[at(held)].category);
    append_eviction(program, beside, value, home);
  } else {
    const StepModel::Held& what = model_.held_[at(held)];
    value = append_fetch(program, beside, model_.program_.nodes[at(what.node)].out[at(what.output)].value, home);
  }
}

void StepWalk::rename(TensorRef& ref, const Step& step, const std::vector<ValueId>& value_of) const {
  const int held = ref.defined() ? model_.held_of_[at(ref.value)] : -1;
  if (held < 0) return;
  const std::vector<int>& reads = model_.work_[at(step.node)].reads;
  const auto r = static_cast<std::size_t>(std::ranges::find(reads, held) - reads.begin());
  ref.value = value_of[at(reads_[step.first_read + r])];
}

StepModel::Load StepModel::weigh(const Choice& choice, std::int64_t limit, bool is_asked) const {
  StepWalk walk(*this, choice);
  if (!walk.run()) return {.seconds = kInfinite, .peak = std::numeric_limits<std::int64_t>::max()};
  return walk.load(limit, is_asked);
}

void StepModel::learn(std::span<const std::int64_t> held) {
  const std::vector<std::int64_t> known = weigh(recorded_, 0, true).held;
  if (held.size() != known.size() || known.size() != beside_.size()) return;
  for (std::size_t i = 0; i < known.size(); ++i) beside_[i] += held[i] - known[i];
}

Program StepModel::apply(const Choice& choice) const {
  StepWalk walk(*this, choice);
  check(walk.run(), "a value cannot be computed again where it is needed");
  return walk.apply();
}

}  // namespace sherd::ir
