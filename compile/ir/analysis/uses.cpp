#include "compile/ir/analysis/uses.h"

#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

template <class Fn>
void for_each_read(const Versions& versions, const Fn& fn) {
  for (std::size_t node = 0; node <= versions.end(); ++node)
    for (const Versions::Use& use : versions.uses_of(node))
      if (use.access.reads)
        for (const Part& part : versions.parts_of(use)) fn(use, part.version);
}

}  // namespace

Uses::Uses(const Versions& versions) : first_(versions.all().size() + 1, 0) {
  for_each_read(versions, [&](const Versions::Use&, VersionId id) { ++first_[static_cast<std::size_t>(id) + 1]; });
  for (const std::size_t i : Numbers<std::size_t>(1, first_.size())) first_[i] += first_[i - 1];
  readers_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for_each_read(versions, [&](const Versions::Use& use, VersionId id) {
    readers_[next[static_cast<std::size_t>(id)]++] = {use.node, use.access.operand, use.access.kind};
  });
}

}  // namespace sherd::ir
