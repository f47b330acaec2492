#include "nn/checkpoint/snapshot.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::nn {

namespace {
constexpr std::int64_t kLine = 64;

std::int64_t up_to_line(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

const std::byte* address_of(const Tensor& t) { return t.storage()->address() + t.offset() * byte_size(t.dtype()); }

OffloadFile* file_of(const Tensor& t) { return t.bytes() == 0 ? nullptr : OffloadFile::of(address_of(t)); }
}  // namespace

std::int64_t Snapshot::kept_bytes(std::span<const Tensor> tensors) {
  std::int64_t bytes = 0;
  for (const Tensor& t : tensors)
    if (!file_of(t)) bytes += up_to_line(t.bytes());
  return bytes;
}

Snapshot::Snapshot(std::vector<Tensor> tensors, Tensor kept)
    : kept_(std::move(kept)), staging_(static_cast<std::size_t>(kBlockBytes)) {
  std::byte* next = kept_.defined() ? kept_.storage()->write() : nullptr;
  for (Tensor& t : tensors) {
    OffloadFile* const file = file_of(t);
    const std::int64_t bytes = t.bytes();
    const std::uint64_t id = t.storage()->id();
    const std::byte* const source = address_of(t);
    Part& part = parts_.emplace_back(std::move(t), source, bytes, file ? nullptr : next, file);
    if (!file) next += up_to_line(bytes);
    if (bytes > 0) by_storage_[id].push_back(&part);
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
    if (is_over) part.is_given.notify_all();
    use(next);
  }
}

void Snapshot::end() noexcept {
  for (Part& part : parts_) {
    const std::lock_guard lock(part.mutex);
    part.given = part.bytes;
    part.is_given.notify_all();
  }
}

void Snapshot::let_go(Part& part) {
  std::unique_lock lock(part.mutex);
  if (part.given == part.bytes || part.is_copied) return;
  if (part.file) return part.is_given.wait(lock, [&] { return part.given == part.bytes; });
  const std::int64_t left = part.bytes - part.given;
  std::memcpy(part.kept + part.given, part.source + part.given, static_cast<std::size_t>(left));
  part.is_copied = true;
  cost_.copied_bytes += left;
}

void Snapshot::let_go(const Storage& storage) noexcept {
  const auto found = by_storage_.find(storage.id());
  if (found == by_storage_.end()) return;
  const auto start = std::chrono::steady_clock::now();
  for (Part* const part : found->second) let_go(*part);
  cost_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace sherd::nn
