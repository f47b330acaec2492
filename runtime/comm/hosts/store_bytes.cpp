#include "runtime/comm/hosts/store_bytes.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime/comm/board/elements.h"
#include "runtime/comm/group/part_checks.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Elements of one rank in one block of a full tensor.
struct Stretch {
  std::int64_t at = 0, count = 0;
};

/// A stretch of `rank` for each block.
std::vector<Stretch> stretches_of(const CollectivePart& part, int rank) {
  const auto self = static_cast<std::size_t>(rank);
  const std::int64_t block = sum(part.counts) / part.blocks, before = sum(std::span(part.counts).first(self));
  std::vector<Stretch> stretches;
  for (std::int64_t b = 0; b < part.blocks; ++b)
    stretches.push_back({b * block + before / part.blocks, part.counts[self] / part.blocks});
  return stretches;
}

std::byte* element(void* data, std::int64_t index, DType dtype) {
  return static_cast<std::byte*>(data) + index * byte_size(dtype);
}

void append(std::string& bytes, const void* data, std::int64_t count, DType dtype) {
  if (count > 0) bytes.append(static_cast<const char*>(data), static_cast<std::size_t>(count * byte_size(dtype)));
}

/// A part begins where any dtype may.
std::size_t part_begin(std::size_t bytes) { return (bytes + 7) / 8 * 8; }
void begin_part(std::string& bytes) { bytes.resize(part_begin(bytes.size())); }

/// Reads what append() has written.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  void begin_part() { at_ = std::min(part_begin(at_), bytes_.size()); }
  const std::byte* next(std::int64_t count, DType dtype) {
    const auto size = static_cast<std::size_t>(count * byte_size(dtype));
    check(size <= bytes_.size() - at_, "a rank has sent {} bytes where {} more were expected", bytes_.size() - at_,
          size);
    at_ += size;
    return reinterpret_cast<const std::byte*>(bytes_.data()) + at_ - size;
  }
  void expect_end() const {
    check(at_ == bytes_.size(), "a rank has sent {} bytes more than were expected", bytes_.size() - at_);
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

using Readers = std::vector<Reader>;

void gather(const CollectivePart& part, Readers& readers) {
  for (const std::size_t r : indices(readers))
    for (const Stretch& s : stretches_of(part, static_cast<int>(r)))
      copy(element(part.out.address, s.at, part.out_type()), part.out_type(), readers[r].next(s.count, part.dtype),
           part.dtype, s.count, false);
}

void reduce_part(const CollectivePart& part, std::int64_t count, const ReduceOptions& options, Readers& readers) {
  std::vector<const std::byte*> inputs;
  for (Reader& reader : readers) inputs.push_back(reader.next(count, part.dtype));
  if (count == 0) return;
  reduce(inputs, static_cast<std::byte*>(part.out.address), count,
         reduction_of(options, static_cast<int>(readers.size()), part), false);
}

void swap(const CollectivePart& part, Readers& readers) {
  std::int64_t at = 0;
  for (const std::size_t r : indices(readers)) {
    const std::int64_t count = part.out_counts[r];
    const std::byte* const from = readers[r].next(count, part.dtype);
    if (count > 0)
      std::memcpy(element(part.out.address, at, part.dtype), from,
                  static_cast<std::size_t>(count * byte_size(part.dtype)));
    at += count;
  }
}

void check_gather(const CollectivePart& part, int rank, int size) {
  check_counts(part.counts, size, part.blocks);
  check_data(part.out.address, sum(part.counts));
  check_source(part);
  if (!part.is_in_place(rank)) check_data(part.in.address, part.counts[static_cast<std::size_t>(rank)]);
}

void check_scatter(const CollectivePart& part, const ReduceOptions& options, int rank, int size) {
  check_counts(part.counts, size, part.blocks);
  check_data(part.in.address, sum(part.counts));
  check_data(part.out.address, part.counts[static_cast<std::size_t>(rank)]);
  check_reducible(part.dtype, options);
  check_casts(part);
}

void check_swap(const CollectivePart& part, int size) {
  check_counts(part.counts, size);
  check_counts(part.out_counts, size);
  check_data(part.in.address, sum(part.counts));
  check_data(part.out.address, sum(part.out_counts));
}

/// The elements of an all_reduce or a broadcast, which may be where they go.
const void* source_of(const CollectivePart& part) { return part.in.address ? part.in.address : part.out.address; }

}  // namespace

void check_parts(const Collective& call, int rank, int size) {
  if (call.op == CommOp::broadcast)
    check(call.peer >= 0 && call.peer < size, "the root is {}, the group has {} ranks; give a root in 0..{}", call.peer,
          size, size - 1);
  for (const CollectivePart& part : call.parts) {
    if (call.op == CommOp::all_gather) check_gather(part, rank, size);
    else if (call.op == CommOp::reduce_scatter) check_scatter(part, call.reduction, rank, size);
    else if (call.op == CommOp::all_to_all) check_swap(part, size);
    else check_flat(part, (call.op == CommOp::send ? part.in : part.out).address);
    if (call.op == CommOp::all_reduce) check_reducible(part.dtype, call.reduction);
  }
}

std::string bytes_for(const Collective& call, int peer, int rank) {
  std::string bytes;
  const auto self = static_cast<std::size_t>(rank), to = static_cast<std::size_t>(peer);
  for (const CollectivePart& part : call.parts) {
    begin_part(bytes);
    if (call.op == CommOp::all_gather) {
      const std::int64_t at = sum(std::span(part.counts).first(self));
      append(bytes, part.is_in_place(rank) ? element(part.out.address, at, part.dtype) : part.in.address,
             part.counts[self], part.dtype);
    } else if (call.op == CommOp::reduce_scatter) {
      for (const Stretch& s : stretches_of(part, peer))
        append(bytes, element(part.in.address, s.at, part.dtype), s.count, part.dtype);
    } else if (call.op == CommOp::all_to_all) {
      append(bytes, element(part.in.address, sum(std::span(part.counts).first(to)), part.dtype), part.counts[to],
             part.dtype);
    } else if (call.op == CommOp::all_reduce || (call.op == CommOp::broadcast && call.peer == rank)) {
      append(bytes, source_of(part), part.counts[0], part.dtype);
    }
  }
  return bytes;
}

void take_bytes(const Collective& call, std::span<const std::string> received, int rank) {
  Readers readers(received.begin(), received.end());
  for (const CollectivePart& part : call.parts) {
    for (Reader& reader : readers) reader.begin_part();
    if (call.op == CommOp::all_gather) gather(part, readers);
    else if (call.op == CommOp::reduce_scatter)
      reduce_part(part, part.counts[static_cast<std::size_t>(rank)], call.reduction, readers);
    else if (call.op == CommOp::all_reduce) reduce_part(part, part.counts[0], call.reduction, readers);
    else if (call.op == CommOp::all_to_all) swap(part, readers);
    else if (call.op == CommOp::broadcast)
      copy(part.out.address, part.dtype, readers[static_cast<std::size_t>(call.peer)].next(part.counts[0], part.dtype),
           part.dtype, part.counts[0], false);
  }
  for (const Reader& reader : readers) reader.expect_end();
}

std::string flat_bytes(const Collective& call) {
  std::string bytes;
  for (const CollectivePart& part : call.parts) {
    begin_part(bytes);
    append(bytes, part.in.address, part.counts[0], part.dtype);
  }
  return bytes;
}

void take_flat(const Collective& call, std::string_view bytes) {
  Reader reader(bytes);
  for (const CollectivePart& part : call.parts) {
    reader.begin_part();
    copy(part.out.address, part.dtype, reader.next(part.counts[0], part.dtype), part.dtype, part.counts[0], false);
  }
  reader.expect_end();
}

}  // namespace sherd::comm
