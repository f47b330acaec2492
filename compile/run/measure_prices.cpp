// Distinct calls are found by their keys (ir/analysis/seconds.h). A step's tensors rarely lie where a loop over one
// kernel would have them: in the nearest cache. So before each run what the step touched long ago is written first,
// then memory of several caches' size, then what it touched shortly before. Nor does a step make one call over and
// over: instructions, pages and the processor's guesses are those of the calls before. So calls take turns, in the
// order of the step, and what counts is a mean: what now and then disturbs a call is in every step for some of its
// calls.
#include "compile/run/measure_prices.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "compile/ir/analysis/seconds.h"
#include "compile/ir/builder.h"
#include "compile/run/agree_prices.h"
#include "compile/run/homes.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/for_scope.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using ir::GraphNode, ir::Program, ir::TensorRef, ir::ValueId;

constexpr int kMostVisits = 10;
constexpr std::int64_t kLeastRoom = 1 << 20;
constexpr std::int64_t kAnyRoom = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kManyValues = 8;  // more than a row has that takes no list

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// But for the fifth that took longest, when other work was on the machine.
double mean_of_most(std::vector<double> values) {
  std::ranges::sort(values);
  values.resize(values.size() - values.size() / 5);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::int64_t cache_bytes() {
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 1 << 20;
}

// Nothing that this thread runs is recorded or traced.
struct Unseen {
  RankContext& context = RankContext::current();
  ForScope<Trace*> trace{&context.trace, nullptr};
  ForScope<MemoryLog*> log{&context.memory_log, nullptr};
  ForScope<CaptureSink*> capture{&context.capture, nullptr};
};

// What a program says of memory.
struct Touches {
  std::vector<std::vector<ValueId>> recent;  // by node: inputs used when no more than a cache's bytes were used since
  std::int64_t most_bytes = 0;               // of temporaries that are there at a time
};

Touches touches_of(const Program& program) {
  constexpr double kLongAgo = -1e300;
  Touches touches;
  std::vector<double> last(program.values.size(), kLongAgo);
  std::vector<bool> is_there(program.values.size());
  double used = 0;
  std::int64_t bytes = 0;
  for (const GraphNode& node : program.nodes) {
    std::vector<ValueId>& recent = touches.recent.emplace_back();
    const double cache = static_cast<double>(cache_bytes());
    for (const TensorRef& ref : node.in)
      if (ref.defined() && used - last[static_cast<std::size_t>(ref.value)] < cache) recent.push_back(ref.value);
    const auto touch = [&](const TensorRef& ref) {
      if (!ref.defined() || node.op->traits.waits) return;
      const auto v = static_cast<std::size_t>(ref.value);
      used += static_cast<double>(numel(ref.shape) * byte_size(ref.dtype));
      last[v] = used;
      if (program.values[v].kind != ir::ValueKind::temporary || is_there[v]) return;
      is_there[v] = true;
      bytes += program.values[v].bytes;
    };
    std::ranges::for_each(node.in, touch);
    std::ranges::for_each(node.out, touch);
    touches.most_bytes = std::max(touches.most_bytes, bytes);
    for (const ValueId v : node.frees)
      if (is_there[static_cast<std::size_t>(v)]) bytes -= program.value(v).bytes;
  }
  return touches;
}

// A call on tensors of its own.
class Call {
 public:
  Call(const Program& program, const GraphNode& node, std::span<const ValueId> recent, std::int64_t room)
      : node_(node), device_(device_of(program, node)) {
    for (const TensorRef& ref : node.in) note(ref);
    for (const TensorRef& ref : node.out) note(ref);
    std::int64_t bytes = 0;
    for (Part& part : parts_) bytes += part.bytes();
    const bool is_list = parts_.size() > kManyValues;
    fits_ = bytes <= room || is_list;
    if (!fits_) return;
    Ref<Storage> all;
    if (bytes > room) all = Storage::allocate(std::min(bytes, std::max(room, largest())), kAccount, device_);
    std::int64_t at = 0;
    for (Part& part : parts_) {
      const Device device = program.value(part.value).device;
      if (all && at + part.bytes() > all->bytes()) at = 0;
      part.memory = all ? all : Storage::allocate(part.bytes(), kAccount, device);
      part.start = all ? at : 0;
      if (all) at += part.bytes();
      part.is_recent = part.bytes() <= cache_bytes() / 2 &&
                       (std::ranges::find(recent, part.value) != recent.end() || is_fresh(program, part.value));
    }
    for (const TensorRef& ref : node.in) in_.push_back(tensor_of(ref));
    for (const TensorRef& ref : node.out) out_.push_back(tensor_of(ref));
  }

  bool fits() const { return fits_; }
  double run(std::span<std::byte> cache) {
    fill(false);
    std::ranges::fill(cache, std::byte{1});
    fill(true);
    synchronize();
    OpCall call{*node_.op, in_, node_.attrs, out_, node_.accumulate};
    const double start = seconds_now();
    device_layer(call);
    synchronize();
    return seconds_now() - start;
  }

 private:
  static constexpr MemoryCategory kAccount = MemoryCategory::workspace;
  static constexpr std::int64_t kLine = 64;
  struct Part {  // of the bytes of a value that the call uses
    ValueId value;
    DType dtype;
    std::int64_t first, last;
    Ref<Storage> memory{};
    std::int64_t start = 0;
    bool is_recent = false;
    std::int64_t bytes() const { return (last - first + kLine - 1) / kLine * kLine; }
  };

  void note(const TensorRef& ref) {
    if (!ref.defined()) return;
    const auto [first, last] = ref.extent();
    const std::int64_t line = first / kLine * kLine;  // bytes keep their places within lines
    Part* part = part_of(ref.value);
    if (!part) part = &parts_.emplace_back(Part{ref.value, ref.dtype, line, last});
    part->first = std::min(part->first, line);
    part->last = std::max(part->last, last);
  }
  // A result that the call makes lies where one was that the step has just let go of.
  bool is_fresh(const Program& program, ValueId value) const {
    return program.value(value).kind == ir::ValueKind::temporary &&
           std::ranges::find(node_.in, value, &TensorRef::value) == node_.in.end();
  }
  Part* part_of(ValueId value) {
    const auto found = std::ranges::find(parts_, value, &Part::value);
    return found == parts_.end() ? nullptr : &*found;
  }
  std::int64_t largest() const {
    std::int64_t most = 0;
    for (const Part& part : parts_) most = std::max(most, part.bytes());
    return most;
  }
  Tensor tensor_of(const TensorRef& ref) {
    if (!ref.defined()) return {};
    const Part& part = *part_of(ref.value);
    const std::int64_t offset = ref.offset + (part.start - part.first) / byte_size(ref.dtype);
    return Tensor::make(part.memory, ref.shape, ref.strides, offset, ref.dtype, part.memory->device());
  }
  // Small numbers, and 0 for ids: no kernel refuses them, and none is slowed down by them.
  void fill(bool recent) {
    for (const Part& part : parts_) {
      const std::int64_t size = byte_size(part.dtype), count = part.bytes() / size;
      if (part.is_recent == recent && count > 0)
        fill_into(Tensor::make(part.memory, {count}, {1}, part.start / size, part.dtype, part.memory->device()),
                  is_floating(part.dtype) ? 0.01 : 0);
    }
  }
  void synchronize() const {
    if (device_.has_backend()) RankContext::current().device(device_).synchronize();
  }

  const GraphNode& node_;
  const Device device_;
  std::vector<Part> parts_;
  std::vector<Tensor> in_, out_;
  bool fits_ = false;
};

/// Equal calls of a program.
struct Kind {
  std::string key;
  std::size_t first;  ///< node
  ir::Work work;      ///< of one of them
  int count = 0;
  std::vector<double> runs{};  ///< seconds; the first until there is another
  int num_runs = 0;
  double estimate() const { return count * work.amount * (work.counts_flops ? 0.2 : 1); }
};

class Measuring {
 public:
  Measuring(const Program& program, double most_seconds, std::int64_t most_bytes)
      : program_(program),
        touches_(touches_of(program)),
        room_(std::min(std::max(touches_.most_bytes, kLeastRoom), most_bytes > 0 ? most_bytes : kAnyRoom)),
        ends_(seconds_now() + most_seconds),
        cache_(static_cast<std::size_t>(std::min(8 * cache_bytes(), touches_.most_bytes))) {}

  Prices calls() {
    find_kinds();
    std::vector<Kind*> order;
    for (Kind& kind : kinds_) order.push_back(&kind);
    std::ranges::stable_sort(order, std::greater(), &Kind::estimate);
    for (Kind* kind : order) run(*kind);
    for (int visit = 1; visit < kMostVisits; ++visit)
      for (Kind& kind : kinds_)
        if (!kind.runs.empty()) run(kind);
    Prices prices;
    std::map<std::string, std::pair<double, double>> sums;  // seconds and work, by rate
    for (const Kind& kind : kinds_) {
      if (kind.runs.empty()) continue;
      const double seconds = mean_of_most(kind.runs);
      prices.rows[kind.key] = seconds;
      for (const std::string_view of : {program_.nodes[kind.first].op->name, kind.work.kind}) {
        auto& [all, work] = sums[rate_key(kind.work, of)];
        all += kind.count * seconds;
        work += kind.count * kind.work.amount;
      }
    }
    for (const auto& [key, sum] : sums)
      if (sum.second > 0) prices.rows[key] = sum.first / sum.second;
    return prices;
  }

 private:
  void find_kinds() {
    std::map<std::string, int> known;
    for (const std::size_t i : indices(program_.nodes)) {
      const GraphNode& node = program_.nodes[i];
      if (!is_computed(node)) continue;
      const auto [at, is_new] = known.emplace(price_key(program_, node), static_cast<int>(kinds_.size()));
      if (is_new) kinds_.push_back({at->first, i, work_of(program_, node)});
      ++kinds_[static_cast<std::size_t>(at->second)].count;
    }
  }

  // Not where time is up, or memory; nor of made-up values that the kernel refuses. In the first run buffers of the
  // kernel grow.
  void run(Kind& kind) {
    const double now = seconds_now();
    if (now >= ends_ || (!kind.runs.empty() && now + kind.runs.front() >= ends_)) return;
    try {
      Call call(program_, program_.nodes[kind.first], touches_.recent[kind.first], room_);
      if (!call.fits()) return;
      const double taken = call.run(cache_);
      if (++kind.num_runs == 2) kind.runs.clear();
      kind.runs.push_back(taken);
    } catch (const Error&) { kind.runs.clear(); }
  }

  const Program& program_;
  const Touches touches_;
  const std::int64_t room_;
  const double ends_;
  std::vector<std::byte> cache_;
  std::vector<Kind> kinds_;
};

}  // namespace

Prices measure_prices(const Program& program, const MeasureOptions& options) {
  check(!RankContext::current().is_ghost(),
        "a ghost rank has no bytes to run kernels on: measure prices on a real one");
  check(options.most_seconds > 0, "prices are to be measured in {} s; give a positive number", options.most_seconds);
  const Unseen unseen;
  const bool is_alone = !options.group || options.group->size() == 1;
  if (!is_alone) check_lengths(program, *options.group);
  const double of_links = is_alone ? 0 : 0.25 * options.most_seconds;
  const double of_copies = options.homes ? 0.1 * options.most_seconds : 0;
  Prices prices = Measuring(program, options.most_seconds - of_links - of_copies, options.most_bytes).calls();
  const auto copies = [&] {  // a disk may be full on one rank
    if (options.homes) measure_copies(*options.homes, of_copies, options.most_bytes, prices);
  };
  if (is_alone) {
    copies();
    return prices;
  }
  together(*options.group, copies);
  measure_links(program, of_links, options.most_bytes, prices);
  return agree_prices(program, prices, *options.group);
}

}  // namespace sherd
