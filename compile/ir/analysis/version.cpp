// A walk in execution order with the bytes of every root cut into segments of one version. Reading cuts segments at its
// ends too, so that each knows exactly who has read it; writing replaces them.
#include "compile/ir/analysis/version.h"

#include <limits>

#include "runtime/tensor/indices.h"

namespace sherd::ir {

Versions::Versions(const Program& program) : program_(program), roots_(program), segments_(program.values.size()) {
  // A root has no bounds: of arguments that share memory, one may begin before the other.
  constexpr ByteRanges::Range kAll{std::numeric_limits<std::int64_t>::min() / 2,
                                   std::numeric_limits<std::int64_t>::max() / 2};
  for (const std::size_t v : indices(program.values)) {
    const auto id = static_cast<ValueId>(v);
    if (roots_.root(id) != id) continue;
    segments_[v].reserve(3);  // most bytes are used whole: before, these, after
    segments_[v].push_back({kAll, static_cast<VersionId>(versions_.size()), {}});
    versions_.push_back({.root = id, .bytes = kAll});
  }
  std::size_t num_refs = program.results.size() + program.updates.size();
  for (const GraphNode& node : program.nodes)
    num_refs += node.in.size() + node.out.size() + node.restores.size() + node.releases.size();
  uses_.reserve(num_refs);
  std::vector<Access> list;
  for (const std::size_t i : indices(program.nodes)) {
    first_use_.push_back(uses_.size());
    list.clear();
    append_accesses(program, roots_, program.nodes[i], list);
    for (const Access& access : list)  // first all reads: what a node writes is not what it reads
      if (!access.writes) add_use(access, static_cast<int>(i));
    for (const Access& access : list)
      if (access.writes) add_use(access, static_cast<int>(i));
  }
  first_use_.push_back(uses_.size());
  const auto end = static_cast<int>(program.nodes.size());
  int operand = 0;
  for (const GraphResult& result : program.results) {
    if (result.local.defined()) add_use(read_at_end(program, roots_, result.local, operand), end);
    ++operand;
  }
  for (const SlotUpdate& update : program.updates) {
    if (update.result.local.defined()) add_use(read_at_end(program, roots_, update.result.local, operand), end);
    ++operand;
  }
  first_use_.push_back(uses_.size());
}

// Where the segment that begins at `at` is, cut there if need be.
std::size_t Versions::split(std::vector<Segment>& segments, std::int64_t at) {
  const auto found = std::partition_point(segments.begin(), segments.end(),
                                          [&](const Segment& segment) { return segment.bytes.second <= at; });
  const auto index = static_cast<std::size_t>(found - segments.begin());
  if (found == segments.end() || found->bytes.first == at) return index;
  Segment rest = *found;
  found->bytes.second = at;
  rest.bytes.first = at;
  segments.insert(found + 1, std::move(rest));
  return index + 1;
}

void Versions::add_use(const Access& access, int node) {
  std::vector<Segment>& segments = segments_[static_cast<std::size_t>(access.root)];
  Use use{.access = access,
          .node = node,
          .first_part = static_cast<std::uint32_t>(parts_.size()),
          .num_parts = 0,
          .first_reader = static_cast<std::uint32_t>(readers_.size()),
          .num_readers = 0};
  const std::size_t first = split(segments, access.bytes.first), last = split(segments, access.bytes.second);
  for (const std::size_t s : Numbers<std::size_t>(first, last)) {
    Segment& segment = segments[s];
    if (parts_.size() > use.first_part && parts_.back().version == segment.version)
      parts_.back().bytes.second = segment.bytes.second;  // only readers tell them apart
    else parts_.push_back({segment.version, segment.bytes});
    if (access.writes) readers_.insert(readers_.end(), segment.readers.begin(), segment.readers.end());
    else if (access.reads) segment.readers.push_back(node);
  }
  use.num_parts = static_cast<std::uint32_t>(parts_.size()) - use.first_part;
  use.num_readers = static_cast<std::uint32_t>(readers_.size()) - use.first_reader;
  if (access.writes) {
    use.makes = static_cast<VersionId>(versions_.size());
    versions_.push_back({.root = access.root,
                         .bytes = access.bytes,
                         .node = node,
                         .kind = access.kind,
                         .operand = access.operand,
                         .as = access.ref,
                         .shift = access.shift});
    segments[first] = {access.bytes, use.makes, {}};
    segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                   segments.begin() + static_cast<std::ptrdiff_t>(last));
  }
  uses_.push_back(use);
}

std::vector<Part> Versions::final_parts(ValueId root) const {
  std::vector<Part> parts;
  for (const Segment& segment : segments_[static_cast<std::size_t>(root)])
    if (!parts.empty() && parts.back().version == segment.version) parts.back().bytes.second = segment.bytes.second;
    else parts.push_back({segment.version, segment.bytes});
  return parts;
}

}  // namespace sherd::ir
