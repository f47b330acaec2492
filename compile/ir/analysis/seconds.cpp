#include "compile/ir/analysis/seconds.h"

#include <algorithm>

#include "compile/ir/analysis/loans.h"
#include "compile/ir/builder.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/core/work.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/op/unit/unit.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

// Where nothing was measured: 50 GF/s, 10 GB/s, 1 GB/s of a queue that is no link, a call of a microsecond.
constexpr double kFlopSeconds = 2e-11, kByteSeconds = 1e-10, kQueueByteSeconds = 1e-9, kCallSeconds = 1e-6;

double price_or(const Prices& prices, std::string_view key, double otherwise) {
  const auto found = prices.rows.find(key);
  return found == prices.rows.end() ? otherwise : found->second;
}

double link_seconds(const Prices& prices, const Transfer& t, std::string_view before, const LinkPrice& otherwise) {
  const auto found = prices.links.find(std::string(before) + link_name(t.movement, t.group));
  return (found == prices.links.end() ? otherwise : found->second).seconds(t.movement, t.ranks, t.bytes);
}

bool says_which(const AttrField& field) {
  constexpr std::string_view names[] = {"unit", "group", "key"};
  return field.is_local || field.is_pace || std::ranges::find(names, field.name) != std::end(names);
}

void append_attrs(AttrsView attrs, std::string& text) {
  if (attrs.empty()) return;
  AttrWriter out(true);
  for (const AttrField& field : attrs.kind()->fields) {
    if (says_which(field)) continue;
    out.raw(" ");
    out.raw(field.name);
    out.raw("=");
    field.print(attrs.object(), out);
  }
  text += out.take();
}

void append_ref(const TensorRef& ref, std::string& text) {
  if (!ref.defined()) {
    text += " -";
    return;
  }
  (text += ' ') += name(ref.dtype);
  const auto append = [&](const auto& numbers) {
    text += '[';
    for (const std::int64_t n : numbers) (text += std::to_string(n)) += ',';
    text += ']';
  };
  append(ref.shape);
  if (ref.strides != contiguous_strides(ref.shape)) append(ref.strides);
}

double bytes_of(const GraphNode& node) {
  double in = 0, out = 0;
  for (const TensorRef& ref : node.in)
    if (ref.defined()) in += static_cast<double>(numel(ref.shape) * byte_size(ref.dtype));
  for (const TensorRef& ref : node.out) out += static_cast<double>(numel(ref.shape) * byte_size(ref.dtype));
  return std::max(in, out);
}

Movement movement_of(const Op& op) {
  if (&op == &op::reduce_scatter) return Movement::scatter;
  if (&op == &op::all_to_all) return Movement::all_to_all;
  return &op == &op::all_gather || &op == &op::broadcast ? Movement::gather : Movement::reduce_all;
}

double piece_bytes(const UnitPiece& piece, std::int64_t element_bytes) {
  return static_cast<double>(numel(piece.shape) * element_bytes);
}

double by_work(const Program& program, const GraphNode& node, const Prices& prices) {
  const Work work = work_of(program, node);
  double rate = work.counts_flops ? kFlopSeconds : kByteSeconds;
  for (const std::string_view of : {work.kind, node.op->name}) rate = price_or(prices, rate_key(work, of), rate);
  return kCallSeconds + work.amount * rate;
}

NodeSeconds price(const Program& program, const GraphNode& node, const Prices& prices, const std::string& key) {
  if (node.op->traits.waits) return {};
  if (const auto found = prices.rows.find(key); found != prices.rows.end())
    return {found->second, price_or(prices, queued_key(key), 0)};
  if (is_computed(node)) return {by_work(program, node, prices)};
  const std::string_view queue = queue_of(node).name;
  if (const std::optional<Transfer> t = transfer_of(node)) {
    const double seconds = link_seconds(prices, *t, "", {});
    if (queue.empty()) return {kCallSeconds + seconds};
    return {kCallSeconds + link_seconds(prices, *t, "work ", {0, 0, std::numeric_limits<double>::infinity()}), seconds};
  }
  if (!queue.empty()) {
    NodeSeconds copy = copy_seconds(prices, node.attrs.as<OffloadAttrs>().kind, bytes_of(node));
    copy.compute += kCallSeconds;
    return copy;
  }
  // A unit of one shard casts here, unless its two buffers are one. Others allocate and free.
  const bool is_copy = node.op->traits.collective;
  const AttrKind* const kind = node.attrs.kind();
  if (!is_copy || (kind && *kind == attr_kind<UnitAttrs> && node.attrs.as<UnitAttrs>().unit->in_place))
    return {kCallSeconds};
  return {kCallSeconds + 2 * bytes_of(node) * price_or(prices, "byte of copy", kByteSeconds)};
}

// The clocks of one run.
class Player {
 public:
  explicit Player(const Program& program) : program_(program), loans_(program) {}

  StepSeconds run(std::span<const NodeSeconds> nodes) {
    for (const std::size_t i : indices(nodes)) {
      const GraphNode& node = program_.nodes[i];
      if (node.op->traits.waits) {
        wait(node);
        loans_.pass(i);
        continue;
      }
      if (!program_.has_waits)
        for (const int item : loans_.needs(i)) await(item);
      if (const QueueUse use = queue_of(node); !use.name.empty()) submit(i, use, nodes[i]);
      else compute(nodes[i].compute);
    }
    result_.seconds = now_;
    for (const auto& [name, queue] : queues_) {
      result_.seconds = std::max(result_.seconds, queue.free_at);
      result_.busy.emplace(name, queue.busy);
    }
    return std::move(result_);
  }

 private:
  struct Clock {
    double free_at = 0, busy = 0;
    std::vector<double> ends{};  // of its items
  };

  void compute(double seconds) {
    now_ += seconds;
    result_.compute += seconds;
  }
  void stand_until(double time) {
    if (time <= now_) return;
    result_.exposed += time - now_;
    now_ = time;
  }
  void await(int item) { stand_until(ends_[static_cast<std::size_t>(item)]); }

  void wait(const GraphNode& node) {
    const bool to_write = node.attrs.as<WaitAttrs>().to_write;
    for (const TensorRef& ref : node.in) {
      if (!ref.defined()) continue;
      if (const int item = loans_.writer(ref.value); item >= 0) await(item);
      if (to_write)
        for (const int item : loans_.users(ref.value)) await(item);
    }
  }

  void submit(std::size_t i, const QueueUse& use, const NodeSeconds& seconds) {
    Clock& queue = queues_[use.name];
    if (queue.ends.size() >= use.max_in_flight) stand_until(queue.ends[queue.ends.size() - use.max_in_flight]);
    compute(seconds.compute);
    int next = loans_.num_items();
    loans_.pass(i);
    for (; next < loans_.num_items(); ++next) {
      double start = std::max(now_, queue.free_at);
      for (const int other : loans_.item(next).follows) start = std::max(start, ends_[static_cast<std::size_t>(other)]);
      const double takes = seconds.queued / static_cast<double>(use.items);
      queue.busy += takes;
      queue.free_at = start + takes;
      queue.ends.push_back(queue.free_at);
      ends_.push_back(queue.free_at);
    }
  }

  const Program& program_;
  Loans loans_;
  double now_ = 0;
  std::vector<double> ends_;  // by item
  std::map<std::string_view, Clock> queues_;
  StepSeconds result_;
};

}  // namespace

bool is_computed(const GraphNode& node) {
  const Traits& traits = node.op->traits;
  const AttrKind* const kind = node.attrs.kind();
  return !traits.collective && !traits.issues && !traits.waits && !(kind && *kind == attr_kind<CollectiveAttrs>);
}

std::optional<Transfer> transfer_of(const GraphNode& node) {
  const AttrKind* const kind = node.attrs.kind();
  if (!kind) return {};
  Transfer t{Movement::gather, {}, 1, 0};
  if (*kind == attr_kind<UnitAttrs> && node.op->traits.collective) {
    const UnitLayout& unit = *node.attrs.as<UnitAttrs>().unit;
    t = {Movement::gather, unit.shard_axis, unit.shards, 0};
    for (const UnitPiece& piece : unit.pieces) t.bytes += piece_bytes(piece, byte_size(piece.full_dtype));
  } else if (*kind == attr_kind<UnitReduceAttrs>) {
    const auto& a = node.attrs.as<UnitReduceAttrs>();
    t = {Movement::scatter, a.unit->shard_axis, a.unit->shards, 0};
    for (const ReducedPiece& p : a.pieces) {
      const UnitPiece& piece = a.unit->piece(p.piece);
      t.bytes += piece_bytes(piece, std::min(byte_size(piece.full_dtype), byte_size(piece.wire)));
    }
  } else if (*kind == attr_kind<ReplicaSumAttrs>) {
    const auto& a = node.attrs.as<ReplicaSumAttrs>();
    t = {Movement::reduce_all, a.unit->replica_axis, a.unit->replicas, 0};
    for (const std::size_t m : indices(a.pieces))
      t.bytes += static_cast<double>(numel(node.in[m].shape) * byte_size(node.in[m].dtype));
  } else if (*kind == attr_kind<CollectiveAttrs>) {
    const ProcessGroup* const group = group_of(node);
    t = {movement_of(*node.op), node.attrs.as<CollectiveAttrs>().group, group ? group->size() : 1,
         node.op->traits.collective ? bytes_of(node) : 0};
  }
  return t.ranks > 1 ? std::optional(t) : std::nullopt;
}

Work work_of(const Program& program, const GraphNode& node) {
  std::vector<TensorMeta> out;
  for (const TensorRef& ref : node.out) out.emplace_back(ref.shape, ref.dtype);
  const CallWork work = call_work(*node.op, metas_of(program, node), node.attrs, out);
  const bool counts_flops = work.kind == WorkKind::contraction || work.kind == WorkKind::attention;
  return {counts_flops, name(work.kind), counts_flops ? work.flops : work.bytes};
}

std::string copy_key(CopyKind kind) { return fmt::format("byte of {}", name(kind)); }
std::string copy_work_key(CopyKind kind) { return "work " + copy_key(kind); }

// What is brought again, and is there already, would take nothing: that is not known before.
NodeSeconds copy_seconds(const Prices& prices, CopyKind kind, double bytes) {
  const CopyKind measured = kind == CopyKind::evict ? kind : CopyKind::fetch;
  return {bytes * price_or(prices, copy_work_key(measured), 0),
          bytes * price_or(prices, copy_key(measured), kQueueByteSeconds)};
}

std::string queued_key(std::string_view key) { return fmt::format("queued {}", key); }

std::string rate_key(const Work& work, std::string_view of) {
  return fmt::format("{} of {}", work.counts_flops ? "flop" : "byte", of);
}

std::string price_key(const Program& program, const GraphNode& node) {
  std::string text(node.op->name);
  append_attrs(node.attrs, text);
  for (const TensorRef& ref : node.in) append_ref(ref, text);
  text += node.accumulate ? " +>" : " ->";
  for (const TensorRef& ref : node.out) {
    append_ref(ref, text);
    const auto same = std::ranges::find(node.in, ref.value, &TensorRef::value);
    if (same != node.in.end()) text += fmt::format("@{}", same - node.in.begin());
  }
  if (const Device device = device_of(program, node); device != Device::cpu()) text += " on " + to_string(device);
  if (const auto transfer = transfer_of(node)) text += " over " + transfer->group;
  return text;
}

NodeSeconds seconds_of(const Program& program, std::size_t node, const Prices& prices) {
  const GraphNode& n = program.nodes[node];
  return price(program, n, prices, price_key(program, n));
}

std::vector<NodeSeconds> node_seconds(const Program& program, const Prices& prices) {
  std::vector<NodeSeconds> all;
  all.reserve(program.nodes.size());
  for (const std::size_t i : indices(program.nodes)) all.push_back(seconds_of(program, i, prices));
  return all;
}

StepSeconds step_seconds(const Program& program, std::span<const NodeSeconds> nodes) {
  check(nodes.size() == program.nodes.size(), "the seconds of {} nodes for a program of {}", nodes.size(),
        program.nodes.size());
  return Player(program).run(nodes);
}

StepSeconds step_seconds(const Program& program, const Prices& prices) {
  return step_seconds(program, node_seconds(program, prices));
}

}  // namespace sherd::ir
