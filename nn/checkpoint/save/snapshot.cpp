#include "nn/checkpoint/save/snapshot.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {
constexpr std::int64_t kLine = 64;

std::int64_t up_to_line(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

const std::byte* address_of(const Tensor& t) { return t.storage()->address() + t.offset() * byte_size(t.dtype()); }

OffloadFile* file_of(const Tensor& t) { return t.bytes() == 0 ? nullptr : OffloadFile::of(address_of(t)); }

bool is_kept(const Snapshot::Value& value) { return !value.is_own && !file_of(value.tensor); }
}  // namespace

std::int64_t Snapshot::kept_bytes(std::span<const Value> values) {
  std::int64_t bytes = 0;
  for (const Value& value : values)
    if (is_kept(value)) bytes += up_to_line(value.tensor.bytes());
  return bytes;
}

Snapshot::Snapshot(std::vector<Value> values, Tensor kept)
    : kept_(std::move(kept)), staging_(static_cast<std::size_t>(kBlockBytes)) {
  const std::int64_t room = kept_.defined() ? kept_.bytes() : 0, needed = kept_bytes(values);
  check(needed <= room, "a snapshot keeps up to {} bytes; there is memory for {}", needed, room);
  std::byte* next = room > 0 ? kept_.storage()->write() : nullptr;
  for (Value& value : values) {
    const bool keeps = is_kept(value);
    const std::int64_t bytes = value.tensor.bytes();
    const std::byte* const source = address_of(value.tensor);
    OffloadFile* const file = file_of(value.tensor);
    Part& part = parts_.emplace_back(std::move(value.tensor), source, bytes, keeps ? next : nullptr, file);
    if (keeps) next += up_to_line(bytes);
    if (bytes > 0 && !value.is_own) by_storage_[part.values.storage()->id()].push_back(&part);
  }
}

std::vector<Loan> Snapshot::loans() const {
  std::vector<Loan> loans;
  for (const auto& [id, parts] : by_storage_) loans.push_back({parts.front()->values.storage(), false});
  return loans;
}

void Snapshot::give(std::size_t tensor, const PieceBytes::Use& use) {
  Part& part = parts_[tensor];
  for (bool is_over = part.bytes == 0; !is_over;) {
    check(!is_cancelled_.load(std::memory_order_relaxed), "it was given up");
    std::span<const std::byte> next;
    {
      const std::lock_guard lock(part.mutex);
      const auto some = static_cast<std::size_t>(std::min(kBlockBytes, part.bytes - part.given));
      if (part.is_copied) {
        next = {part.kept + part.given, some};
      } else {
        if (part.file) part.file->read(part.source + part.given, std::span(staging_).first(some));
        else std::memcpy(staging_.data(), part.source + part.given, some);
        next = std::span(staging_).first(some);
      }
      part.given += static_cast<std::int64_t>(next.size());
      is_over = part.given == part.bytes;
    }
    use(next);
  }
}

void Snapshot::end() noexcept {
  for (Part& part : parts_) {
    const std::lock_guard lock(part.mutex);
    part.given = part.bytes;
  }
}

bool Snapshot::let_go(Part& part) {
  const std::lock_guard lock(part.mutex);
  if (part.given == part.bytes || part.is_copied) return true;
  if (part.file) return false;
  const std::int64_t left = part.bytes - part.given;
  std::memcpy(part.kept + part.given, part.source + part.given, static_cast<std::size_t>(left));
  part.is_copied = true;
  cost_.copied_bytes += left;
  return true;
}

bool Snapshot::let_go(const Storage& storage) noexcept {
  const auto found = by_storage_.find(storage.id());
  if (found == by_storage_.end()) return true;
  const auto start = std::chrono::steady_clock::now();
  const bool all = std::ranges::all_of(found->second, [this](Part* part) { return let_go(*part); });
  cost_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return all;
}

}  // namespace sherd::ckpt
