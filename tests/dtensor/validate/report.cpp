#include "tests/dtensor/validate/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/dtensor/validate/missing.h"
#include "tests/dtensor/validate/reasons.h"

namespace sherd::testing {

namespace {

const MeshShape kMeshes[] = {{{2}}, {{3}}, {{2, 2}}};

std::string why_skipped(const Op& op) {
  if (op.traits.placement) return "moves tensors itself";
  if (is_run_by_dtensor(op)) return "is run by its rule only";
  if (op.traits.collective) return "is communication itself";
  if (op.traits.local_extents) return "works on each rank's own elements";
  if (op.traits.effect) return "changes memory in place";
  for (const OpCase& c : op_cases())
    if (c.op == op.name)
      for (const Arg& arg : c.args)
        if (arg.draw != Draw::absent) return {};
  return "has no tensor input";
}

const Variant* find_variant(const std::vector<Variant>& all, const std::string& name, Sizes sizes) {
  for (const Variant& v : all)
    if (v.op_case.name == name && v.sizes == sizes) return &v;
  return nullptr;
}

/// Finds what local calls can do, on 2 and 3 ranks, and on shards of different sizes.
class Search {
 public:
  explicit Search(const Op& op) : op_(op), on_2_(variants_of(op, 2)), on_3_(variants_of(op, 3)) {}

  std::optional<MissingRule> missing(const Result& result) const {
    if (result.cost == Cost::free || result.variant.sizes != Sizes::even) return {};
    const std::optional<std::string> out = local_execution(op_, result.variant, result.combination, 2);
    if (!out || !runs_locally(on_3_, result, Sizes::even, 3)) return {};
    MissingRule found{result.variant.op_case.name, to_string(result.combination), *out, {}};
    found.reason = reason_for_missing(op_.name, found.in);
    const bool any_sizes =
        runs_locally(on_2_, result, Sizes::uneven, 2) && runs_locally(on_3_, result, Sizes::uneven, 3);
    if (found.reason.empty() && !any_sizes) found.reason = "right for parts of equal size only";
    return found;
  }

 private:
  // Cases without a variant of these sizes do not count against it.
  bool runs_locally(const std::vector<Variant>& all, const Result& result, Sizes sizes, int ranks) const {
    const Variant* variant = find_variant(all, result.variant.op_case.name, sizes);
    return !variant || local_execution(op_, *variant, result.combination, ranks);
  }

  const Op& op_;
  std::vector<Variant> on_2_, on_3_;
};

std::string cost_text(const Result& r) {
  switch (r.cost) {
    case Cost::free: return "free";
    case Cost::moves: return fmt::format("{} B in {}", r.bytes, r.calls);
    case Cost::refused: return "refused: " + r.refusal;
  }
  return {};
}

std::string where(const RowReport& report, const MeshShape& mesh, const Result& r) {
  return fmt::format("{} ({}) on {}: {}", report.op, r.variant.name(), mesh.name(), to_string(r.combination));
}

}  // namespace

RowReport validate_row(const Op& op, const Effort& effort) {
  RowReport report{std::string(op.name), why_skipped(op), {}, {}};
  if (!report.skipped.empty()) return report;
  for (const MeshShape& mesh : kMeshes) report.meshes.push_back({mesh, run_on_mesh(op, mesh, effort)});
  const Search search(op);
  std::set<std::string> seen;
  for (const Result& result : report.meshes[0].results)
    if (!seen.contains(result.variant.name() + to_string(result.combination)))
      if (std::optional<MissingRule> found = search.missing(result)) {
        seen.insert(result.variant.name() + to_string(result.combination));
        report.missing.push_back(std::move(*found));
      }
  return report;
}

std::vector<std::string> failures(const RowReport& report) {
  std::vector<std::string> all;
  for (const auto& [mesh, results] : report.meshes)
    for (const Result& r : results) {
      if (!r.wrong.empty()) all.push_back(fmt::format("wrong: {} -> {}: {}", where(report, mesh, r), r.out, r.wrong));
      if (!r.refusal.empty() && reason_for_refusal(report.op, r.refusal).empty())
        all.push_back(fmt::format("refused: {}: {}", where(report, mesh, r), r.refusal));
    }
  for (const MissingRule& m : report.missing)
    if (m.reason.empty())
      all.push_back(
          fmt::format("missing: {} ({}): {} -> {} needs no communication", report.op, m.variant, m.in, m.out));
  return all;
}

std::string summary(const RowReport& report) {
  if (!report.skipped.empty()) return fmt::format("{:<40} {}", report.op, report.skipped);
  std::size_t calls = 0, free = 0, move = 0, refused = 0, wrong = 0;
  for (const auto& [mesh, results] : report.meshes)
    for (const Result& r : results) {
      ++calls;
      free += r.cost == Cost::free;
      move += r.cost == Cost::moves;
      refused += !r.refusal.empty();
      wrong += !r.wrong.empty();
    }
  return fmt::format("{:<40} {:>6} calls: {:>6} free {:>6} move {:>5} refused {:>4} wrong {:>4} missing", report.op,
                     calls, free, move, refused, wrong, report.missing.size());
}

std::string table(const RowReport& report) {
  std::string text = summary(report) + "\n";
  if (!report.skipped.empty()) return text;
  const Variant* shown = nullptr;  // the first even call, or the first
  for (const Result& r : report.meshes[0].results)
    if (!shown || (shown->sizes != Sizes::even && r.variant.sizes == Sizes::even)) shown = &r.variant;
  for (const Result& r : report.meshes[0].results) {
    if (r.variant.name() != shown->name()) continue;
    text += fmt::format("  {:<24} -> {:<12} {}\n", to_string(r.combination), r.out, cost_text(r));
  }
  std::map<std::string, std::string> reasons;  // the same in many cases is said once
  for (const MissingRule& m : report.missing)
    reasons.emplace(fmt::format("{} -> {}", m.in, m.out), m.reason.empty() ? "no reason given" : m.reason);
  for (const auto& [what, why] : reasons) text += fmt::format("  missing {:<32} {}\n", what, why);
  return text;
}

}  // namespace sherd::testing
