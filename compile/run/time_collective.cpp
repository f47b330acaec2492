#include "compile/run/time_collective.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <sstream>

#include <fmt/ranges.h>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/chunks.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/memory/storage.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

double core_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Ref<Storage> made_up(std::int64_t count) {
  Ref<Storage> storage = Storage::allocate(4 * count, MemoryCategory::communication);
  std::ranges::fill(std::span(reinterpret_cast<float*>(storage->write()), static_cast<std::size_t>(count)), 0.01f);
  return storage;
}

/// The full tensor, and what it is made of or becomes.
struct MovedMemory {
  Ref<Storage> full, other;
};

MovedMemory memory_of(const ProcessGroup& group, Movement movement, std::int64_t count) {
  const std::int64_t here = chunk_size(count, group.size(), group.rank());
  return {made_up(count), made_up(movement == Movement::all_to_all ? here * group.size() : here)};
}

Collective call_of(const ProcessGroup& group, Movement movement, std::int64_t count, const MovedMemory& memory) {
  const std::int64_t here = chunk_size(count, group.size(), group.rank());
  const Buffer full{memory.full->write(), 4 * count}, other{memory.other->write(), 4 * here};
  CollectivePart data{.dtype = DType::f32};
  for (const int r : up_to(group.size())) data.counts.push_back(chunk_size(count, group.size(), r));
  switch (movement) {
    case Movement::gather: data.in = other, data.out = full; return {comm::CommOp::all_gather, {data}};
    case Movement::scatter: data.in = full, data.out = other; return {comm::CommOp::reduce_scatter, {data}};
    case Movement::reduce_all: return {comm::CommOp::all_reduce, {in_place(full.address, DType::f32, count)}};
    case Movement::all_to_all: break;
  }
  data.in = full, data.out = {memory.other->write(), 4 * here * group.size()};
  data.out_counts.assign(data.counts.size(), here);
  return {comm::CommOp::all_to_all, {data}};
}

}  // namespace

std::vector<double> largest_of_ranks(ProcessGroup& group, std::span<const double> own) {
  std::vector<double> most(own.begin(), own.end());
  for (const std::string& text : gather_text(group, fmt::format("{}", fmt::join(own, " ")))) {
    std::istringstream words(text);
    for (double& value : most)
      if (double other = 0; words >> other) value = std::max(value, other);
  }
  return most;
}

CollectiveTime time_collective(ProcessGroup& group, Movement movement, double bytes, int runs) {
  const auto count = static_cast<std::int64_t>(bytes) / 4;
  const MovedMemory memory = memory_of(group, movement, count);
  const Collective call = call_of(group, movement, count, memory);
  std::vector<double> wall, own;
  for (int i = 0; i <= runs; ++i) {
    group.host().barrier();
    const double before = core_seconds();
    const auto start = std::chrono::steady_clock::now();
    group.host().run(call);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i == 0) continue;  // buffers grow
    own.push_back(core_seconds() - before);
    wall.push_back(took.count());
  }
  std::ranges::sort(wall);
  std::ranges::sort(own);
  const auto middle = static_cast<std::size_t>(runs / 2);
  const std::vector<double> most = largest_of_ranks(group, std::vector{wall[middle], own[middle]});
  return {most[0], most[1]};
}

}  // namespace sherd
