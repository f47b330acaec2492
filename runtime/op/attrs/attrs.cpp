#include "runtime/op/attrs/attrs.h"

#include <cstring>

#include "runtime/tensor/pool.h"

namespace sherd {

namespace {

// Blocks come in a few sizes, so that the blocks of the tape are reused as its nodes are.
template <std::size_t kBytes>
struct Room {
  Room() {}  // leaves the bytes as they are
  alignas(AttrBlock) std::byte bytes[kBytes];
};

constexpr std::size_t kSmall = 64, kMedium = 128, kLarge = 256;

void* take(std::size_t bytes) {
  if (bytes <= kSmall) return Pool<Room<kSmall>>::make();
  if (bytes <= kMedium) return Pool<Room<kMedium>>::make();
  if (bytes <= kLarge) return Pool<Room<kLarge>>::make();
  return ::operator new(bytes);
}

void give_back(void* room, std::size_t bytes) {
  if (bytes <= kSmall) return Pool<Room<kSmall>>::destroy(static_cast<Room<kSmall>*>(room));
  if (bytes <= kMedium) return Pool<Room<kMedium>>::destroy(static_cast<Room<kMedium>*>(room));
  if (bytes <= kLarge) return Pool<Room<kLarge>>::destroy(static_cast<Room<kLarge>*>(room));
  ::operator delete(room);
}

}  // namespace

Ref<AttrBlock> AttrBlock::make(const AttrKind& kind, const void* object) {
  const std::size_t bytes = sizeof(AttrBlock) + kind.bytes;
  void* room = take(bytes);
  auto* block = ::new (room) AttrBlock(kind);
  if (!kind.copy) {
    std::memcpy(block->object(), object, kind.bytes);
    return Ref<AttrBlock>::fresh(block);
  }
  try {
    kind.copy(block->object(), object);
  } catch (...) {
    give_back(room, bytes);
    throw;
  }
  return Ref<AttrBlock>::fresh(block);
}

void AttrBlock::destroy(AttrBlock* block) {
  const AttrKind& kind = block->kind_;
  if (kind.destroy) kind.destroy(block->object());
  block->~AttrBlock();
  give_back(block, sizeof(AttrBlock) + kind.bytes);
}

std::uint64_t AttrBlock::hash() const {
  std::uint64_t hash = hash_.load(std::memory_order_relaxed);
  if (hash == 0) hash_.store(hash = hash_attrs(kind_, object()), std::memory_order_relaxed);
  return hash;
}

std::uint64_t AttrsView::hash() const {
  if (kind_) return hash_attrs(*kind_, object_);
  return object_ ? block()->hash() : 0;
}

bool operator==(AttrsView a, AttrsView b) {
  const AttrKind *x = a.kind(), *y = b.kind();
  if (!x || !y) return x == y;
  return *x == *y && (a.object() == b.object() || equal_attrs(*x, a.object(), b.object()));
}

bool equal_attrs(const AttrKind& kind, const void* a, const void* b) {
  for (const AttrField& field : kind.fields)
    if (!field.equal(a, b)) return false;
  return true;
}

std::uint64_t hash_attrs(const AttrKind& kind, const void* object) {
  std::uint64_t hash = 0x243f6a8885a308d3u;
  for (const AttrField& field : kind.fields) hash = mix_attr_hash(hash, field.hash(object));
  return hash;
}

}  // namespace sherd
