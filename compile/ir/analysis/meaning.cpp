// One walk over the versions. A tensor's meaning is that of the version it reads if it is read as it was written, else
// a hash of how it looks at which versions: positions count from where the version's own elements begin, so that
// storage is invisible.
#include "compile/ir/analysis/meaning.h"

#include <numeric>

#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

class Hash {
 public:
  explicit Hash(std::string_view what) { text(what); }
  Hash& word(std::uint64_t w) {
    a_ = mix(a_ ^ w, 0x9e3779b97f4a7c15u);
    b_ = mix(b_ + w, 0xd6e8feb86659fd93u);
    return *this;
  }
  Hash& number(std::int64_t n) { return word(static_cast<std::uint64_t>(n)); }
  Hash& text(std::string_view t) { return word(fnv1a(t)).number(static_cast<std::int64_t>(t.size())); }
  Hash& sizes(const Dims& dims) {
    number(dims.size());
    for (const std::int64_t d : dims) number(d);
    return *this;
  }
  Hash& meaning(const Meaning& m) { return word(m.a).word(m.b); }
  Meaning take() const { return {a_, b_}; }

 private:
  static std::uint64_t mix(std::uint64_t x, std::uint64_t factor) {
    x *= factor;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
  }
  std::uint64_t a_ = 0x243f6a8885a308d3u, b_ = 0x13198a2e03707344u;
};

bool is_gapless(const TensorRef& ref) {
  const auto [first, last] = ref.extent();
  return last - first == numel(ref.shape) * byte_size(ref.dtype);
}

// Byte of element 0, counted from the root's start.
std::int64_t first_byte(const TensorRef& ref, std::int64_t shift) { return ref.offset * byte_size(ref.dtype) + shift; }

}  // namespace

Meanings::Meanings(const Program& program)
    : program_(program),
      versions_(program),
      of_version_(versions_.all().size()),
      around_(versions_.all().size()),
      copied_(versions_.all().size()) {
  std::iota(copied_.begin(), copied_.end(), VersionId{0});
  std::size_t num_uses = 0;
  for (std::size_t node = 0; node <= versions_.end(); ++node) num_uses += versions_.uses_of(node).size();
  of_use_.resize(num_uses);
  first_use_ = versions_.uses_of(0).data();
  for (const std::size_t v : indices(versions_.all()))
    if (versions_.all()[v].node < 0) of_version_[v] = initial(versions_.all()[v].root);
  for (const std::size_t node : up_to(versions_.end())) read_node(node);
  for (const Versions::Use& use : versions_.uses_of(versions_.end()))
    of_use_[static_cast<std::size_t>(&use - first_use_)] = read(use);
  add_finals();
}

Meaning Meanings::initial(ValueId root) const {
  const Value& value = program_.value(root);
  Hash hash("before");
  hash.number(static_cast<int>(value.kind));
  if (value.kind == ValueKind::temporary) return hash.take();
  if (value.kind == ValueKind::argument) return hash.number(value.source).take();
  if (value.kind == ValueKind::slot || value.kind == ValueKind::gradient)
    return hash.text(program_.slot(program_.bindings[static_cast<std::size_t>(value.source)].slot).name).take();
  return hash.number(value.source).number(value.bytes).number(value.is_absent).take();
}

void Meanings::read_node(std::size_t node) {
  for (const Versions::Use& use : versions_.uses_of(node))
    if (use.access.ref && use.access.kind != AccessKind::awaited)
      of_use_[static_cast<std::size_t>(&use - first_use_)] = read(use);
  const Meaning row = this->row(node);
  for (const Versions::Use& use : versions_.uses_of(node)) {
    if (!use.access.writes) continue;
    of_version_[static_cast<std::size_t>(use.makes)] = written(use, row);
    if (!use.access.ref || is_gapless(*use.access.ref)) continue;
    Hash around("around");
    around.meaning(of(use));
    for (const Part& part : versions_.parts_of(use)) around.meaning(around_[static_cast<std::size_t>(part.version)]);
    around_[static_cast<std::size_t>(use.makes)] = around.take();
  }
  if (program_.nodes[node].op == &op::copy_start) note_copy(node);
}

// All bytes of one version go to a home, or come from there: who reads them reads that version.
void Meanings::note_copy(std::size_t node) {
  const auto uses = versions_.uses_of(node);
  if (uses.size() != 2) return;
  const Versions::Use &from = uses[0], &to = uses[1];  // reads come first
  if (from.num_parts != 1 || !to.access.writes || from.access.bytes != to.access.bytes) return;
  const VersionId whole = copied(versions_.parts_of(from)[0].version);
  if (versions_[whole].bytes == to.access.bytes) copied_[static_cast<std::size_t>(to.makes)] = whole;
}

Meaning Meanings::read(const Versions::Use& use) const {
  if (numel(use.access.ref->shape) == 0)
    return Hash("empty").number(static_cast<int>(use.access.ref->dtype)).sizes(use.access.ref->shape).take();
  return tensor(*use.access.ref, use.access.shift, versions_.parts_of(use));
}

Meaning Meanings::tensor(const TensorRef& ref, std::int64_t shift, std::span<const Part> parts) const {
  const std::int64_t first = first_byte(ref, shift);
  if (parts.size() == 1)
    if (const VersionId whole = copied(parts[0].version); is_read_as_written(ref, first, versions_[whole]))
      return of(whole);
  Hash hash("view");
  hash.number(static_cast<int>(ref.dtype)).sizes(ref.shape).sizes(ref.strides);
  if (parts.size() == 1) return hash.meaning(bytes_of(parts[0].version, first)).take();
  for (const Part& part : parts)
    hash.number(part.bytes.first - first)
        .number(part.bytes.second - part.bytes.first)
        .meaning(bytes_of(part.version, part.bytes.first));
  return hash.take();
}

bool Meanings::is_read_as_written(const TensorRef& ref, std::int64_t first, const Version& version) {
  const TensorRef* const as = version.as;
  return as && ref.dtype == as->dtype && ref.shape == as->shape && ref.strides == as->strides &&
         first == first_byte(*as, version.shift);
}

// The bytes of a version from `first` of the root on. Its meaning says which elements it has, not how they lie.
Meaning Meanings::bytes_of(VersionId copy, std::int64_t first) const {
  const VersionId id = copied(copy);
  const Version& version = versions_[id];
  Hash hash("bytes");
  if (const TensorRef* const as = version.as) {
    hash.number(first - first_byte(*as, version.shift)).number(static_cast<int>(as->dtype)).sizes(as->shape);
    if (!is_contiguous(as->shape, as->strides)) hash.sizes(as->strides);
  } else {
    hash.number(first);
  }
  return hash.meaning(of(id)).meaning(around_[static_cast<std::size_t>(id)]).take();
}

// What the row makes of what it reads; `written` says which of its results.
Meaning Meanings::row(std::size_t node) const {
  const GraphNode& n = program_.nodes[node];
  Hash hash(n.op->name);
  hash.word(n.attrs.hash()).number(static_cast<std::int64_t>(n.in.size())).number(n.num_mutated);
  for (const Versions::Use& use : versions_.uses_of(node)) {
    const bool is_input = use.access.kind == AccessKind::input || use.access.kind == AccessKind::mutated;
    if (is_input) hash.number(use.access.operand).meaning(of(use));
  }
  for (const TensorRef& ref : n.in)  // units' storages are places to the rows that fill and release them
    if (ref.defined() && n.op->traits.effect && program_.value(ref.value).kind == ValueKind::unit)
      hash.number(program_.value(ref.value).source)
          .number(static_cast<int>(ref.dtype))
          .sizes(ref.shape)
          .sizes(ref.strides)
          .number(ref.offset);
  return hash.take();
}

// A copy is what it copies. What is added to is a sum, of the row as it would be alone.
Meaning Meanings::written(const Versions::Use& use, Meaning row) const {
  const GraphNode& node = program_.nodes[static_cast<std::size_t>(use.node)];
  if (use.access.kind == AccessKind::released) return Hash("released").take();
  Meaning result;
  if (node.op == &op::copy) {
    result = of(versions_.uses_of(static_cast<std::size_t>(use.node))[0]);
  } else {
    Hash hash("result");
    hash.meaning(row);
    if (use.access.kind == AccessKind::mutated) hash.text("changed");
    if (use.access.kind == AccessKind::restored) hash.text("restored");
    result = hash.number(use.access.operand).take();
  }
  if (use.access.kind != AccessKind::accumulated) return result;
  return Hash("sum").meaning(of(use)).meaning(result).take();
}

Meanings::Final& Meanings::add_final(ValueId value, int operand, std::span<const Part> parts) {
  Final& final = finals_.emplace_back(
      Final{.value = value, .operand = operand, .first_version = static_cast<std::uint32_t>(final_versions_.size())});
  for (const Part& part : parts) final_versions_.push_back(part.version);
  final.num_versions = static_cast<std::uint32_t>(parts.size());
  return final;
}

void Meanings::add_finals() {
  const auto end = versions_.uses_of(versions_.end());
  std::size_t next = 0;  // of those, which come in the order of their operands
  const auto num_operands = static_cast<int>(program_.results.size() + program_.updates.size());
  for (const int operand : up_to(num_operands)) {
    if (next == end.size() || end[next].access.operand != operand) {
      add_final(kNoValue, operand, {}).meaning = Hash("none").take();
      continue;
    }
    add_final(kNoValue, operand, versions_.parts_of(end[next])).meaning = of(end[next]);
    ++next;
  }
  for (const std::size_t v : indices(program_.values)) {
    const auto id = static_cast<ValueId>(v);
    const ValueKind kind = program_.values[v].kind;
    if (kind != ValueKind::temporary && kind != ValueKind::unit && versions_.roots().root(id) == id)
      add_final_bytes(id);
  }
}

void Meanings::add_final_bytes(ValueId root) {
  const std::vector<Part> parts = versions_.final_parts(root);
  Hash hash("bytes");
  for (const Part& part : parts)
    hash.number(part.bytes.first).number(part.bytes.second).meaning(bytes_of(part.version, part.bytes.first));
  add_final(root, -1, parts).meaning = hash.take();
}

std::string Meanings::name(const Final& final) const {
  const auto slot = [&](int index, bool gradient) {
    return fmt::format("@{}{}", program_.slot(index).name, gradient ? ".grad" : "");
  };
  if (final.value == kNoValue) {
    const auto operand = static_cast<std::size_t>(final.operand), num_results = program_.results.size();
    if (operand < num_results) return fmt::format("result {}", operand);
    const SlotUpdate& update = program_.updates[operand - num_results];
    return slot(update.slot, update.gradient);
  }
  const Value& value = program_.value(final.value);
  if (value.kind == ValueKind::argument) return fmt::format("the bytes of argument {}", value.source);
  if (value.kind == ValueKind::constant) return fmt::format("the bytes of constant {}", value.source);
  return "the bytes of " +
         slot(program_.bindings[static_cast<std::size_t>(value.source)].slot, value.kind == ValueKind::gradient);
}

}  // namespace sherd::ir
