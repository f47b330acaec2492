#include "compile/passes/budget/step_model.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>
#include <utility>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/analysis/numbers.h"
#include "compile/ir/builder.h"
#include "compile/ir/text/print.h"

namespace sherd::ir {

namespace {

/// How often each value is written, by nodes.
std::vector<int> count_writes(const Program& program) {
  std::vector<int> writes(program.values.size(), 0);
  for (const GraphNode& node : program.nodes) {
    for (const TensorRef& out : node.out) ++writes[at(out.value)];
    for (int m = 0; m < node.num_mutated; ++m)
      if (const TensorRef& in = node.in[at(m)]; in.defined()) ++writes[at(in.value)];
  }
  return writes;
}

bool is_whole(const Program& program, const TensorRef& ref) {
  return ref.extent() == std::pair<std::int64_t, std::int64_t>(0, program.value(ref.value).bytes);
}

// Nothing is written but its outputs, whole, by it alone, and they follow from what it reads.
bool can_repeat(const Program& program, const GraphNode& node, const std::vector<int>& writes) {
  const Traits& traits = node.op->traits;
  if (traits.effect || traits.collective || traits.issues || traits.waits || node.accumulate || node.num_mutated > 0)
    return false;
  return std::ranges::all_of(node.out, [&](const TensorRef& out) {
    return program.value(out.value).kind == ValueKind::temporary && writes[at(out.value)] == 1 &&
           is_whole(program, out);
  });
}

// Where the row's kernel needs memory of its own, and where the result of a row that cannot add is held.
std::int64_t scratch_of(const Program& program, const GraphNode& node) {
  std::int64_t bytes = 0;
  if (node.accumulate && !node.op->traits.accumulates)
    for (const TensorRef& out : node.out) bytes += numel(out.shape) * byte_size(out.dtype);
  if (node.op->traits.waits) return bytes;
  const Device device = device_of(program, node);
  if (device.is_meta()) return bytes;
  if (const Scratch scratch = kernels_of(*node.op).scratch[static_cast<std::size_t>(device.kind)])
    bytes += std::max<std::int64_t>(0, scratch({*node.op, metas_of(program, node), node.attrs}));
  return bytes;
}

// "blocks.#.attn.wq"
std::string without_numbers(const std::string& path) {
  std::string name;
  for (const char c : path)
    if (!std::isdigit(static_cast<unsigned char>(c))) name += c;
    else if (name.empty() || name.back() != '#') name += '#';
  return name;
}

// Whether two gathers bring the same from the same shards: not if one is of slices that fewer ranks have kept.
bool does_as(const GraphNode& a, const GraphNode& b) {
  return a.op == b.op && a.attrs == b.attrs && std::ranges::equal(a.in, b.in);
}

// A call on a queue, from what slots hold.
bool gathers_slots(const Program& program, const GraphNode& node) {
  return !lane_of(node).empty() && std::ranges::all_of(node.in, [&](const TensorRef& in) {
    return in.defined() && (in.value == node.restores[0] || program.value(in.value).kind == ValueKind::slot);
  });
}

void add_once(std::vector<int>& list, int item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

}  // namespace

StepModel::StepModel(const Program& program, std::vector<double> seconds, std::optional<Elsewhere> elsewhere)
    : program_(program), seconds_(std::move(seconds)), elsewhere_(elsewhere), beside_(program.nodes.size(), 0) {
  find_temporaries();
  find_work();
  find_gaps();
  find_copies();
  find_unit_gaps();
  find_kept_units();
  name_kinds();
  lay_out();
}

// Finds among nodes that mean the same one whose outputs are laid out like this one's; -1 if there is none.
int StepModel::twin_before(std::size_t node, std::vector<int>& others) const {
  const auto is_alike = [&](const TensorRef& a, const TensorRef& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.offset == b.offset &&
           program_.value(a.value).device == program_.value(b.value).device;
  };
  const auto twin = std::ranges::find_if(others, [&](int other) {
    return std::ranges::equal(program_.nodes[at(other)].out, program_.nodes[node].out, is_alike);
  });
  return twin == others.end() ? -1 : *twin;
}

void StepModel::find_temporaries() {
  const std::vector<int> writes = count_writes(program_);
  const Meanings meanings(program_);
  std::map<std::tuple<const Op*, std::uint64_t, std::uint64_t>, std::vector<int>> same;
  held_of_.assign(program_.values.size(), -1);
  work_.resize(program_.nodes.size());
  for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
    const GraphNode& node = program_.nodes[i];
    Work& work = work_[i];
    work.first = static_cast<int>(i);
    work.can_repeat = can_repeat(program_, node, writes);
    if (work.can_repeat && !node.out.empty()) {
      Meaning meant;
      for (const Versions::Use& use : meanings.versions().uses_of(i))
        if (use.makes != kNoVersion && meant == Meaning{}) meant = meanings.of(use.makes);
      std::vector<int>& others = same[{node.op, meant.a, meant.b}];
      if (const int twin = twin_before(i, others); twin >= 0) work.first = twin;
      else others.push_back(static_cast<int>(i));
    }
    for (std::size_t o = 0; o < node.out.size(); ++o) {
      const ValueId v = node.out[o].value;
      int& held = held_of_[at(v)];
      if (program_.value(v).kind != ValueKind::temporary || held >= 0) continue;
      if (work.first != static_cast<int>(i)) {
        held = held_of_[at(program_.nodes[at(work.first)].out[o].value)];
      } else {
        held = static_cast<int>(held_.size());
        held_.push_back({.bytes = program_.value(v).bytes,
                         .node = static_cast<int>(i),
                         .output = static_cast<int>(o),
                         .can_repeat = work.can_repeat,
                         .writers = writes[at(v)],
                         .category = program_.value(v).category});
      }
      held_[at(held)].makers.push_back(static_cast<int>(i));
    }
  }
}

bool StepModel::begins_in(int node, ValueId value) const {
  const int held = held_of_[at(value)];
  if (held < 0) return false;
  const std::vector<int>& makers = held_[at(held)].makers;
  return std::ranges::find(makers, node) != makers.end();
}

void StepModel::find_work() {
  const auto end = static_cast<int>(program_.nodes.size());
  find_writes();
  for (int i = 0; i < end; ++i) find_reads(i);
  const auto keep = [&](const TensorRef& ref) {
    const int held = ref.defined() ? held_of_[at(ref.value)] : -1;
    if (held >= 0) add_once(held_[at(held)].uses, end);
  };
  for (const GraphResult& result : program_.results) keep(result.local);
  for (const SlotUpdate& update : program_.updates) keep(update.result.local);
}

// Temporaries that a node reads or adds to, and what they may give their bytes to.
void StepModel::find_reads(int index) {
  const GraphNode& node = program_.nodes[at(index)];
  Work& work = work_[at(index)];
  work.seconds = seconds_[at(index)];
  const auto add_bytes = [&](const TensorRef& ref) {
    if (ref.defined()) work.moved += static_cast<double>(numel(ref.shape) * byte_size(ref.dtype));
  };
  std::ranges::for_each(node.in, add_bytes);
  std::ranges::for_each(node.out, add_bytes);
  work.scratch = scratch_of(program_, node);
  const auto read = [&](ValueId value) {
    const int held = held_of_[at(value)];
    add_once(work.reads, held);
    add_once(held_[at(held)].uses, index);
  };
  for (const TensorRef& in : node.in)
    if (in.defined() && held_of_[at(in.value)] >= 0) read(in.value);
  for (const TensorRef& out : node.out) {
    const int held = held_of_[at(out.value)];
    const bool begins = begins_in(index, out.value);
    work.makes.push_back(begins ? held : -1);
    if (held >= 0 && !begins) read(out.value);
  }
  if (!node.op->traits.pointwise || node.out.size() != 1 || work.makes[0] < 0) return;
  for (const TensorRef& in : node.in) {
    TensorRef same = node.out[0];
    same.value = in.value;
    if (in.defined() && in == same && held_of_[at(in.value)] >= 0) add_once(work.donors, held_of_[at(in.value)]);
  }
}

// Whether what is no temporary is at a node as it was at another: how often it has been written. A gather writes
// parameters if their shards have been written since the gather before.
void StepModel::find_writes() {
  std::vector<int> writes(program_.values.size(), 0), gathered(program_.values.size(), 0);
  for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
    const GraphNode& node = program_.nodes[i];
    Work& work = work_[i];
    const auto is_outside = [&](const TensorRef& ref) { return ref.defined() && held_of_[at(ref.value)] < 0; };
    for (const TensorRef& in : node.in)
      if (is_outside(in) && std::ranges::find(work.outside, in.value, &Outside::value) == work.outside.end())
        work.outside.push_back({in.value, writes[at(in.value)]});
    for (int m = 0; m < node.num_mutated; ++m)
      if (const TensorRef& in = node.in[at(m)]; is_outside(in)) work.writes.push_back(in.value);
    for (const TensorRef& out : node.out)
      if (is_outside(out)) work.writes.push_back(out.value);
    for (const ValueId unit : node.restores) {
      const int shards = node.in[0].defined() ? writes[at(node.in[0].value)] : 0;
      if (std::exchange(gathered[at(unit)], shards) != shards) work.writes.push_back(unit);
    }
    for (const ValueId v : work.writes) ++writes[at(v)];
  }
}

void StepModel::find_gaps() {
  for (std::size_t h = 0; h < held_.size(); ++h) {
    Held& held = held_[h];
    const bool leaves = can_leave(held);
    if (!(held.can_repeat || leaves) || held.uses.size() < 2 || held.bytes == 0) continue;
    held.first_gap = static_cast<int>(gaps_.size());
    for (std::size_t u = 1; u < held.uses.size(); ++u) {
      gaps_.push_back({.held = static_cast<int>(h),
                       .use = static_cast<int>(u),
                       .first = held.uses[u - 1],
                       .last = held.uses[u],
                       .node = held.node,
                       .bytes = held.bytes,
                       .can_repeat = held.can_repeat,
                       .can_leave = leaves});
      const bool is_gone =
          std::ranges::any_of(held.makers, [&](int maker) { return held.uses[u - 1] < maker && maker < held.uses[u]; });
      recorded_.push_back(is_gone ? Over::gone : Over::held);
    }
  }
}

// What is written once, whole, by one node, and is dense: its bytes are all that it is. A step of a device moves no
// bytes of the host.
bool StepModel::can_leave(const Held& held) const {
  if (!elsewhere_ || held.bytes < elsewhere_->least_bytes || held.category != MemoryCategory::activations ||
      held.writers != 1)
    return false;
  const GraphNode& node = program_.nodes[at(held.node)];
  const TensorRef& made = node.out[at(held.output)];
  const auto is_of_device = [](const Value& value) { return value.device.has_backend(); };
  if (!is_of_device(program_.value(made.value)) && std::ranges::any_of(program_.values, is_of_device)) return false;
  return !node.accumulate && is_whole(program_, made) && numel(made.shape) * byte_size(made.dtype) == held.bytes;
}

// Beside nodes that take twice as long as the copy, since copies come one after the other.
void StepModel::find_copies() {
  for (std::size_t g = 0; g < gaps_.size(); ++g) {
    Gap& gap = gaps_[g];
    const int before_last = std::min(gap.last, static_cast<int>(work_.size())) - 1;
    if (!gap.can_leave || before_last <= gap.first) continue;
    const auto bytes = static_cast<double>(gap.bytes);
    int out = gap.first, back = before_last;
    for (double left = 2 * bytes * elsewhere_->out.queued; left > 0 && out < before_last;) left -= seconds_[at(++out)];
    for (double left = 2 * bytes * elsewhere_->back.queued - seconds_[at(back)]; left > 0 && back > gap.first;)
      left -= seconds_[at(--back)];
    if (out >= back) continue;
    gap.out_by = out;
    gap.back_from = back;
    work_[at(out)].outs_until.push_back(static_cast<int>(g));
    work_[at(back)].backs_from.push_back(static_cast<int>(g));
  }
}

// A gap of a unit is between a release and a gather of it alone, if its shards stay as they are in between.
void StepModel::find_unit_gaps() {
  std::vector<int> released(program_.values.size(), -1), gathered(program_.values.size(), -1);
  for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
    const GraphNode& node = program_.nodes[i];
    Work& work = work_[i];
    if (node.restores.size() == 1 && node.releases.empty()) {
      const ValueId unit = node.restores[0];
      const int from = released[at(unit)];
      const int before = std::exchange(gathered[at(unit)], static_cast<int>(i));
      if (from >= 0 && before >= 0 && does_as(program_.nodes[at(before)], node) &&
          std::ranges::find(work.writes, unit) == work.writes.end()) {
        const auto gap = static_cast<int>(gaps_.size());
        gaps_.push_back({.held = static_cast<int>(unit),
                         .first = from,
                         .last = static_cast<int>(i),
                         .bytes = program_.value(unit).bytes,
                         .is_unit = true});
        recorded_.push_back(Over::gone);
        work_[at(from)].opens = gap;
        work.closes = gap;
      }
    }
    for (const ValueId v : node.restores) released[at(v)] = -1;
    for (const ValueId v : node.releases) {
      const bool is_alone = node.releases.size() == 1 && node.restores.empty();
      released[at(v)] = is_alone ? static_cast<int>(i) : -1;
    }
  }
}

// Between two uses of a unit that was recorded to stay, others are used. It may be gathered again where the last of
// them begins to be used, as units are that were recorded to be released, if its shards and its own bytes stay as they
// are.
void StepModel::find_kept_units() {
  struct Stay {
    int gather = -1, use = -1;
    std::vector<Gap> gaps{};
  };
  std::vector<Stay> stays(program_.values.size());
  std::vector<int> written(program_.values.size(), -1);
  std::vector<std::pair<int, ValueId>> uses;  // of all units: nodes, in order
  const auto pass_use = [&](int node, ValueId unit) {
    Stay& stay = stays[at(unit)];
    const int from = std::exchange(stay.use, node);
    std::size_t begin = uses.size();  // where the last of the others begins to be used
    while (begin > 0 && uses[begin - 1].first > from && uses[begin - 1].second == uses.back().second) --begin;
    if (stay.gather >= 0 && from >= 0 && begin < uses.size()) {
      const ValueId shards = program_.nodes[at(stay.gather)].in[0].value;
      if (std::max(written[at(shards)], written[at(unit)]) <= stay.gather)
        stay.gaps.push_back({.held = static_cast<int>(unit),
                             .first = from,
                             .last = uses[begin].first,
                             .bytes = program_.value(unit).bytes,
                             .is_unit = true,
                             .gather = stay.gather,
                             .late = node});
    }
    uses.emplace_back(node, unit);
  };
  for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
    const GraphNode& node = program_.nodes[i];
    const auto index = static_cast<int>(i);
    const auto is_alone = [](const auto& some, const auto& others) { return some.size() == 1 && others.empty(); };
    for (const ValueId v : node.restores)
      stays[at(v)] = {.gather = is_alone(node.restores, node.releases) && gathers_slots(program_, node) ? index : -1};
    for (const ValueId v : node.releases) {
      Stay stay = std::exchange(stays[at(v)], {});
      if (!is_alone(node.releases, node.restores)) continue;
      for (Gap& gap : stay.gaps) {
        const auto number = static_cast<int>(gaps_.size());
        gap.release = index;
        work_[at(gap.first)].releases_after.push_back(number);
        work_[at(gap.last)].gathers_before.push_back(number);
        work_[at(gap.late)].gathers_late.push_back(number);
        gaps_.push_back(gap);
        recorded_.push_back(Over::held);
      }
    }
    if (!node.restores.empty() || !node.releases.empty()) continue;
    const auto is_unit = [&](ValueId v) { return program_.value(v).kind == ValueKind::unit; };
    for (const Outside& outside : work_[i].outside)
      if (is_unit(outside.value)) pass_use(index, outside.value);
    for (const ValueId v : work_[i].writes) {
      written[at(v)] = index;
      if (is_unit(v)) pass_use(index, v);
    }
  }
}

void StepModel::name_kinds() {
  std::map<std::string, int> kinds;
  for (Gap& gap : gaps_) {
    std::string key;
    if (gap.is_unit) {
      const int unit = program_.value(static_cast<ValueId>(gap.held)).source;
      key = fmt::format("unit {}{}", without_numbers(program_.units[at(unit)]), gap.gather < 0 ? "" : ", kept");
    } else {
      const Held& held = held_[at(gap.held)];
      const GraphNode& node = program_.nodes[at(held.node)];
      const std::string path = node.module == kNoModule ? "" : without_numbers(program_.modules[at(node.module)]);
      key = fmt::format("{} {} {} {} {} {}", node.op->name, path, held.output, gap.bytes, gap.use, held.uses.size());
    }
    gap.kind = kinds.try_emplace(std::move(key), static_cast<int>(kinds.size())).first->second;
  }
  num_kinds_ = static_cast<int>(kinds.size());
}

}  // namespace sherd::ir
