#include "tests/support/emulated_nccl/call.h"

#include <array>

#include <fmt/format.h>

namespace sherd::cuda::nccl::fake {

namespace {

struct TypeFacts {
  const char* name;
  std::size_t bytes;
};
constexpr TypeFacts kTypes[] = {{"int8", 1},    {"uint8", 1},    {"int32", 4},      {"uint32", 4},
                                {"int64", 8},   {"uint64", 8},   {"float16", 2},    {"float32", 4},
                                {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1}};
constexpr const char* kOps[] = {"sum", "prod", "max", "min", "avg", "factor and sum"};

const TypeFacts* facts_of(DataType type) {
  const auto i = static_cast<std::size_t>(type);
  return i < std::size(kTypes) ? &kTypes[i] : nullptr;
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
                                    "ncclReduce",    "ncclSend",      "ncclRecv"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t bytes_of(DataType type) { return facts_of(type) ? facts_of(type)->bytes : 0; }

std::string text_of(const Signature& s) {
  std::string text =
      fmt::format("{} of {} {}", name_of(s.kind), s.count, facts_of(s.type) ? facts_of(s.type)->name : "?");
  if (s.kind == Kind::all_reduce || s.kind == Kind::reduce_scatter || s.kind == Kind::reduce)
    text += fmt::format(", op {}", kOps[s.op]);
  return s.root < 0 ? text : text + fmt::format(", root {}", s.root);
}

Bytes Call::reads(int rank, int world) const {
  switch (signature.kind) {
    case Kind::recv: return {};
    case Kind::broadcast: return rank == signature.root ? Bytes{in, bytes()} : Bytes{};
    case Kind::reduce_scatter: return {in, bytes() * static_cast<std::size_t>(world)};
    default: return {in, bytes()};
  }
}

Bytes Call::writes(int rank, int world) const {
  switch (signature.kind) {
    case Kind::send: return {};
    case Kind::reduce: return rank == signature.root ? Bytes{out, bytes()} : Bytes{};
    case Kind::all_gather: return {out, bytes() * static_cast<std::size_t>(world)};
    default: return {out, bytes()};
  }
}

bool Call::keeps_in_place_rules(int rank, int world) const {
  const Bytes read = reads(rank, world), written = writes(rank, world);
  if (!read.overlaps(written)) return true;
  const std::size_t own = static_cast<std::size_t>(rank) * bytes();
  switch (signature.kind) {
    case Kind::all_gather: return read.begin == written.begin + own;
    case Kind::reduce_scatter: return written.begin == read.begin + own;
    default: return read.begin == written.begin;
  }
}

std::pair<int, int> overlapping(std::span<const Call> calls, int rank, int world) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (std::size_t j = 0; j < calls.size(); ++j) {
      const Bytes written = calls[i].writes(rank, world);
      if (i != j && (written.overlaps(calls[j].reads(rank, world)) || written.overlaps(calls[j].writes(rank, world))))
        return {static_cast<int>(i), static_cast<int>(j)};
    }
  return {-1, -1};
}

}  // namespace sherd::cuda::nccl::fake
