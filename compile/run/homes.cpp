#include "compile/run/homes.h"

#include <algorithm>
#include <chrono>

#include "compile/ir/analysis/seconds.h"
#include "compile/ir/homes.h"
#include "compile/run/agree_prices.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"

namespace sherd {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<Ref<Storage>> take_homes(const ir::Program& program, std::size_t first, OffloadHomes& homes) {
  const std::vector<bool> are_homes = ir::homes_of(program);
  std::vector<Tensor> taken(are_homes.size());
  for (const ir::Value& value : program.values) {
    if (value.kind != ir::ValueKind::constant) continue;
    const auto source = static_cast<std::size_t>(value.source);
    if (source >= first && are_homes[source]) taken[source] = homes.take(value.bytes);
  }
  std::vector<Ref<Storage>> storages;
  for (const Tensor& home : taken)
    if (home.defined()) storages.push_back(home.storage());
  return storages;
}

// The first copy of each kind is not counted: blocks of a disk, and buffers, are taken then.
void measure_copies(OffloadHomes& homes, double seconds, std::int64_t most_bytes, Prices& prices) {
  constexpr std::int64_t kSize = 4 << 20, kLeast = 4096;
  constexpr int kRuns = 5;
  const std::int64_t size = most_bytes > 0 ? std::min(kSize, most_bytes) : kSize;
  if (size < kLeast) return;
  const Tensor home = homes.take(size);
  const OffloadAttrs attrs{.device = homes.store().device(), .activations = true};
  std::vector<double> out, back;
  const Clock::time_point begin = Clock::now();
  for (int run = 0; run <= kRuns && (run < 2 || seconds_since(begin) < seconds); ++run) {
    Tensor here = bytes_over(Storage::allocate(size, MemoryCategory::workspace, attrs.device));
    fill_into(here, 1);
    Clock::time_point start = Clock::now();
    evict({&home, 1}, here, attrs);
    here.storage()->wait_to_write();
    if (run > 0) out.push_back(seconds_since(start));
    here = Tensor();
    start = Clock::now();
    here = fetch({&home, 1}, attrs, MemoryCategory::workspace);
    here.storage()->wait_to_read();
    if (run > 0) back.push_back(seconds_since(start));
  }
  const auto add = [&](CopyKind kind, double takes) {
    const double of_byte = takes / static_cast<double>(size);
    prices.rows.insert_or_assign(ir::copy_key(kind), of_byte);
    if (queues_share_core()) prices.rows.insert_or_assign(ir::copy_work_key(kind), of_byte);
  };
  add(CopyKind::evict, median(out));
  add(CopyKind::fetch, median(back));
}

}  // namespace sherd
