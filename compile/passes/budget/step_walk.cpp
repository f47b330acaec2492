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

/// One run of a node, or a copy. Instances are numbered from 0 as they are made.
struct WalkStep {
  int node;                    // -1: a copy
  int before;                  // the recorded node that it comes before, or is
  int first_read, first_made;  // in lists of instances
  int instance = -1;           // that is copied
  bool repeats = false;        // what an earlier one has done
  Copy copy = Copy::none;
};

/// What a walk has come to.
struct WalkTrace {
  struct Instance {
    int held;
    int last;  // step that uses it last
  };
  std::vector<WalkStep> steps;
  std::vector<Instance> instances;
  std::vector<int> reads, made;

  void add(WalkStep step) {
    step.first_read = static_cast<int>(reads.size());
    step.first_made = static_cast<int>(made.size());
    steps.push_back(step);
  }
  void clear() { steps.clear(), instances.clear(), reads.clear(), made.clear(); }
};

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Seconds of the rank's thread, and of the queue that copies.
struct Clock {
  /// Without copies nothing is waited for.
  Clock(const Elsewhere& elsewhere, std::size_t instances, bool has_copies)
      : takes(elsewhere), there_at(has_copies ? instances : 0, 0) {}

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
  /// May run again and again, each time from the beginning.
  explicit StepWalk(const StepModel& model) : model_(model) {}

  /// False: something cannot be brought back.
  bool run(const Choice& choice) {
    begin(choice);
    const auto end = static_cast<int>(model_.work_.size());
    for (int i = 0; i < end && is_possible_; ++i) visit(i);
    for (std::size_t h = 0; h < states_.size() && is_possible_; ++h) {
      const StepModel::Held& held = model_.held_[h];
      if (held.uses.empty() || held.uses.back() != end) continue;
      ensure(static_cast<int>(h));
      left_.push_back({static_cast<int>(h), states_[h].instance});
    }
    for (const auto& [held, instance] : left_) {
      const auto step = static_cast<int>(trace_.steps.size());
      trace_.instances[at(instance)].last = step;
      pass_use(held, end, step - 1);
    }
    return is_possible_;
  }

  StepModel::Load load(std::int64_t limit, bool is_asked);
  Program apply() const;

 private:
  struct State {
    int instance = -1;
    int next_use = 0;
    bool is_there = false, has_home = false;
  };

  void begin(const Choice& choice) {
    choice_ = choice.data();
    states_.assign(model_.held_rows_.size(), {});
    writes_.assign(model_.program_.values.size(), 0);
    used_at_.assign(model_.gaps_.size(), {-1, -1});
    leaves_at_ = used_at_;
    present_.resize(model_.program_.values.size());
    for (std::size_t v = 0; v < present_.size(); ++v) present_[v] = !model_.program_.values[v].is_absent;
    back_.clear(), leaving_.clear(), left_.clear();
    trace_.clear();
    is_possible_ = true;
    depth_ = 0;
  }

  int donor_of(const WalkStep& step, int index) const;
  int instance_read(const WalkStep& step, int held) const {
    const std::span<const int> all = model_.rows_.reads(step.node);
    return trace_.reads[at(step.first_read) + static_cast<std::size_t>(std::ranges::find(all, held) - all.begin())];
  }
  void find_gaps(int step, std::vector<int>& gaps) const;
  void append_copy(const WalkStep& step, const GraphNode& beside, Program& program, std::vector<TensorRef>& homes,
                   std::vector<ValueId>& value_of) const;
  void rename(TensorRef& ref, const WalkStep& step, const std::vector<ValueId>& value_of) const;

  void visit(int i) {
    now_ = i;
    if (model_.rows_[i].is_plain) return run_plain(i);
    const StepModel::Work& work = model_.work_[at(i)];
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
      used_at_[at(gap)].second = static_cast<int>(trace_.steps.size());
      if (choice_[at(gap)] != Over::gone) continue;
      leaves_at_[at(gap)].first = static_cast<int>(trace_.steps.size());
      act_on_unit(model_.gaps_[at(gap)].gather);
    }
    for (const int gap : work.gathers_late) {
      if (choice_[at(gap)] == Over::brief) act_on_unit(model_.gaps_[at(gap)].gather);
      if (choice_[at(gap)] == Over::gone) leaves_at_[at(gap)].second = static_cast<int>(trace_.steps.size());
    }
    run_plain(i);
    change_presence(i);
    for (const int gap : work.releases_after) {
      used_at_[at(gap)].first = static_cast<int>(trace_.steps.size()) - 1;
      if (choice_[at(gap)] != Over::held) act_on_unit(model_.gaps_[at(gap)].release);
    }
  }

  void run_plain(int i) {
    const int first = model_.rows_[i].first;
    if (first == i || is_needed(i)) take(i, first != i);
    const int step = static_cast<int>(trace_.steps.size()) - 1;
    for (const int held : model_.rows_.reads(i)) pass_use(held, i, step);
    for (const int gap : leaving_) begin_leaving(gap);
    leaving_.clear();
    for (const int held : back_)
      if (!has_use(held) ||
          (is_brief(held) && std::ranges::find(model_.rows_.makes(i), held) == model_.rows_.makes(i).end()))
        states_[at(held)].is_there = false;
    back_.clear();
    for (const ValueId v : model_.rows_.writes(i)) ++writes_[at(v)];
  }

  // ---- copies ----

  void copy(Copy way, int instance) {
    trace_.instances[at(instance)].last = static_cast<int>(trace_.steps.size());
    trace_.add({.node = -1, .before = now_, .first_read = 0, .first_made = 0, .instance = instance, .copy = way});
  }
  // What has a home already is as it was.
  void begin_leaving(int gap) {
    State& state = states_[at(model_.gaps_[at(gap)].held)];
    if (std::exchange(state.has_home, true)) return;
    leaves_at_[at(gap)].first = static_cast<int>(trace_.steps.size());
    copy(Copy::out, state.instance);
    if (choice_[at(gap)] == Over::apart) end_leaving(gap);
  }
  void end_leaving(int gap) {
    auto& [first, last] = leaves_at_[at(gap)];
    if (first < 0 || last >= 0) return;
    last = static_cast<int>(trace_.steps.size());
    copy(Copy::wait, trace_.steps[at(first)].instance);
  }
  void fetch(int held) {
    State& state = states_[at(held)];
    state.instance = static_cast<int>(trace_.instances.size());
    state.is_there = true;
    trace_.instances.push_back({held, -1});
    if (has_use(held)) used_at_[gap_of(held)].first = static_cast<int>(trace_.steps.size());
    copy(Copy::back, state.instance);
  }
  // The one before the next use of something that has gaps and was used.
  std::size_t gap_of(int held) const {
    return at(model_.held_rows_[at(held)].first_gap + states_[at(held)].next_use - 1);
  }

  // Appends a gather or a release like a recorded one.
  void act_on_unit(int i) {
    trace_.add({.node = i, .before = now_, .first_read = 0, .first_made = 0});
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
  bool is_needed(int i) const {
    return std::ranges::any_of(model_.rows_.makes(i),
                               [&](int held) { return held >= 0 && !states_[at(held)].is_there && has_use(held); });
  }
  // Whether a value that is back goes again, now that the node has run for which it came.
  bool is_brief(int held) const {
    const int gap = model_.held_rows_[at(held)].first_gap, use = states_[at(held)].next_use;
    if (gap < 0 || use == 0) return false;
    const Over over = choice_[at(gap + use - 1)];
    return over == Over::brief || over == Over::apart;
  }
  bool has_use(int held) const { return states_[at(held)].next_use < model_.held_rows_[at(held)].num_uses; }

  // Appends the node. What it makes is there from now on, unless nobody reads it.
  void take(int i, bool repeats) {
    for (const int held : model_.rows_.reads(i)) {
      if (states_[at(held)].is_there) continue;
      ensure(held);
      if (!is_possible_) return;
    }
    const auto step = static_cast<int>(trace_.steps.size());
    trace_.add({.node = i, .before = now_, .first_read = 0, .first_made = 0, .repeats = repeats});
    for (const int held : model_.rows_.reads(i)) {
      const int instance = states_[at(held)].instance;
      trace_.instances[at(instance)].last = step;
      trace_.reads.push_back(instance);
    }
    for (const int held : model_.rows_.makes(i)) {
      trace_.made.push_back(held < 0 ? -1 : static_cast<int>(trace_.instances.size()));
      if (held < 0) continue;
      trace_.instances.push_back({held, step});
      State& state = states_[at(held)];
      if (repeats && state.is_there) continue;  // the other is whole
      state.instance = trace_.made.back();
      state.is_there = has_use(held);
      if (repeats) came_back(held, step);
    }
  }

  void came_back(int held, int step) {
    const int gap = model_.held_rows_[at(held)].first_gap, use = states_[at(held)].next_use;
    if (gap >= 0 && use > 0 && has_use(held)) used_at_[at(gap + use - 1)].first = step;
    back_.push_back(held);
  }

  // Makes the value be there.
  void ensure(int held) {
    State& state = states_[at(held)];
    if (state.is_there) return;
    const StepModel::HeldRow& what = model_.held_rows_[at(held)];
    if (state.has_home && has_use(held) && is_copied(choice_[gap_of(held)])) {
      fetch(held);
      back_.push_back(held);
      return;
    }
    if (!what.can_repeat) {
      is_possible_ = is_possible_ && state.instance >= 0 && what.has_one_writer;  // then it is held for longer
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
    const auto all = model_.rows_.outside(node);
    return std::ranges::all_of(all, [&](const StepModel::Outside& outside) {
      return present_[at(outside.value)] && writes_[at(outside.value)] == outside.writes;
    });
  }

  void pass_use(int held, int node, int step) {
    State& state = states_[at(held)];
    const StepModel::HeldRow& what = model_.held_rows_[at(held)];
    if (!has_use(held) || model_.uses_[at(what.uses + state.next_use)] != node) return;
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
  const Over* choice_ = nullptr;  // by gap
  std::vector<State> states_;     // by held
  std::vector<int> writes_;       // by value
  std::vector<char> present_;     // by value
  std::vector<int> back_;         // for the node that is visited
  std::vector<int> leaving_;      // gaps of what is copied after it
  WalkTrace trace_;
  std::vector<char> gave_;                    // by instance: it has given its bytes away
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
StepModel::Load StepWalk::load(std::int64_t limit, bool is_asked) {
  StepModel::Load found;
  std::int64_t now = model_.bytes_at_first_;
  const auto bytes = [&](int instance) { return model_.held_rows_[at(trace_.instances[at(instance)].held)].bytes; };
  int peak_step = -1;
  const auto note = [&](std::int64_t most, int step) {
    if (is_asked) found.held.push_back(most);
    if (most > limit) found.excess += static_cast<double>(most - limit);
    if (most <= found.peak) return;
    found.peak = most;
    peak_step = step;
  };
  const bool has_copies = model_.elsewhere_.has_value();
  Clock clock(model_.elsewhere_.value_or(Elsewhere()), trace_.instances.size(), has_copies);
  gave_.assign(trace_.instances.size(), false);
  for (std::size_t s = 0; s < trace_.steps.size(); ++s) {
    const WalkStep& step = trace_.steps[s];
    if (step.copy != Copy::none) {
      const std::int64_t size = bytes(step.instance);
      clock.copy(step.copy, step.instance, static_cast<double>(size));
      if (step.copy == Copy::back) now += size;
      note(now + model_.beside_[at(step.before)], static_cast<int>(s));
      if (trace_.instances[at(step.instance)].last == static_cast<int>(s)) now -= size;
      continue;
    }
    const StepModel::Row& row = model_.rows_[step.node];
    const GraphNode* const unit_node = row.is_plain || step.repeats ? nullptr : &model_.program_.nodes[at(step.node)];
    const auto listed = [](const std::vector<int>& all, int first, std::size_t count) {
      return std::span(all).subspan(at(first), count);
    };
    const std::span<const int> read = listed(trace_.reads, step.first_read, model_.rows_.reads(step.node).size());
    const std::span<const int> made = listed(trace_.made, step.first_made, model_.rows_.makes(step.node).size());
    if (has_copies) std::ranges::for_each(read, [&](int instance) { clock.await(instance); });
    clock.now += row.seconds;
    found.moved += row.moved;
    if (unit_node)
      for (const ValueId v : unit_node->restores) now += model_.program_.value(v).bytes;
    const int donor = donor_of(step, static_cast<int>(s));
    for (std::size_t o = 0; o < made.size(); ++o)
      if (made[o] >= 0 && (o > 0 || donor < 0)) now += bytes(made[o]);
    if (donor >= 0) gave_[at(donor)] = true;
    note(now + row.scratch + model_.beside_[at(step.before)], static_cast<int>(s));
    const auto end = [&](int instance) {
      if (instance >= 0 && trace_.instances[at(instance)].last == static_cast<int>(s) &&
          !std::exchange(gave_[at(instance)], char{1}))
        now -= bytes(instance);
    };
    std::ranges::for_each(read, end);
    std::ranges::for_each(made, end);
    if (unit_node)
      for (const ValueId v : unit_node->releases) now -= model_.program_.value(v).bytes;
  }
  found.seconds = std::max(clock.now, clock.free_at);
  if (is_asked) find_gaps(peak_step, found.at_peak);
  found.moved += clock.moved;
  return found;
}

// The instance whose bytes the step's output takes; -1: none.
int StepWalk::donor_of(const WalkStep& step, int index) const {
  for (const int held : model_.rows_.donors(step.node)) {
    const int instance = instance_read(step, held);
    const StepModel::Held &in = model_.held_[at(held)], &out = model_.held_[at(model_.rows_.makes(step.node)[0])];
    if (trace_.instances[at(instance)].last == index && in.bytes == out.bytes && in.category == out.category)
      return instance;
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
  std::vector<ValueId> value_of(trace_.instances.size(), kNoValue);
  std::vector<TensorRef> homes(model_.held_.size());
  for (const WalkStep& step : trace_.steps) {
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
      if (const int made = trace_.made[at(step.first_made) + o]; made >= 0) value_of[at(made)] = node.out[o].value;
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

void StepWalk::append_copy(const WalkStep& step, const GraphNode& beside, Program& program,
                           std::vector<TensorRef>& homes, std::vector<ValueId>& value_of) const {
  const int held = trace_.instances[at(step.instance)].held;
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

void StepWalk::rename(TensorRef& ref, const WalkStep& step, const std::vector<ValueId>& value_of) const {
  const int held = ref.defined() ? model_.held_of_[at(ref.value)] : -1;
  if (held < 0) return;
  ref.value = value_of[at(instance_read(step, held))];
}

void StepModel::lay_out() {
  const auto append = [](auto& all, const auto& own) { all.insert(all.end(), own.begin(), own.end()); };
  const auto begin_row = [&]() -> Row& {
    const auto num = [](const auto& list) { return static_cast<int>(list.size()); };
    return rows_.all.emplace_back(Row{.reads = num(rows_.all_reads),
                                      .makes = num(rows_.all_makes),
                                      .donors = num(rows_.all_donors),
                                      .outside = num(rows_.all_outside),
                                      .writes = num(rows_.all_writes)});
  };
  for (std::size_t i = 0; i < work_.size(); ++i) {
    const Work& work = work_[i];
    const GraphNode& node = program_.nodes[i];
    Row& row = begin_row();
    row.seconds = work.seconds;
    row.moved = work.moved;
    row.scratch = work.scratch;
    row.first = work.first;
    row.is_plain =
        work.opens < 0 && work.closes < 0 && node.restores.empty() && node.releases.empty() &&
        std::ranges::all_of(
            std::initializer_list<const std::vector<int>*>{&work.releases_after, &work.gathers_before,
                                                           &work.gathers_late, &work.outs_until, &work.backs_from},
            [](const std::vector<int>* list) { return list->empty(); });
    append(rows_.all_reads, work.reads);
    append(rows_.all_makes, work.makes);
    append(rows_.all_donors, work.donors);
    append(rows_.all_outside, work.outside);
    append(rows_.all_writes, work.writes);
  }
  begin_row();
  for (const Held& held : held_) {
    held_rows_.push_back({.bytes = held.bytes,
                          .node = held.node,
                          .first_gap = held.first_gap,
                          .uses = static_cast<int>(uses_.size()),
                          .num_uses = static_cast<int>(held.uses.size()),
                          .can_repeat = held.can_repeat,
                          .has_one_writer = held.writers == 1});
    append(uses_, held.uses);
  }
  for (const Value& value : program_.values)
    if (value.kind == ValueKind::unit && !value.is_absent) bytes_at_first_ += value.bytes;
}

StepModel::Load StepModel::weigh(const Choice& choice, std::int64_t limit, bool is_asked) const {
  if (!walk_) walk_ = std::make_shared<StepWalk>(*this);
  if (!walk_->run(choice)) return {.seconds = kInfinite, .peak = std::numeric_limits<std::int64_t>::max()};
  return walk_->load(limit, is_asked);
}

void StepModel::learn(std::span<const std::int64_t> held) {
  const std::vector<std::int64_t> known = weigh(recorded_, 0, true).held;
  if (held.size() != known.size() || known.size() != beside_.size()) return;
  for (std::size_t i = 0; i < known.size(); ++i) beside_[i] += held[i] - known[i];
}

Program StepModel::apply(const Choice& choice) const {
  StepWalk walk(*this);
  check(walk.run(choice), "a value cannot be computed again where it is needed");
  return walk.apply();
}

}  // namespace sherd::ir
