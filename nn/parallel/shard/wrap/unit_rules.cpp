// Rules walk the module tree from the leaves up, keeping the parameters that no unit has taken yet. A module may be
// wrapped only if no module outside of it uses one of these: a parameter is gathered for the modules of one unit.
#include "nn/parallel/shard/wrap/unit_rules.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "nn/module_list.h"
#include "nn/parallel/shard/wrap/unit_members.h"
#include "nn/parallel/shard/wrap/unit_table.h"
#include "nn/shard_keeper.h"
#include "runtime/tensor/nearest.h"
#include "runtime/tensor/quantity.h"

namespace sherd::nn {

namespace {

using Parameters = std::set<const Parameter*>;

bool is_below(const Module* m, const Module& above) {
  for (; m; m = m->parent())
    if (m == &above) return true;
  return false;
}

/// The parameters of a model that units may take.
class FreeParameters {
 public:
  FreeParameters(Module& model, const UnitPolicy& policy) : policy_(policy) {
    model.for_each_module([this](Module& m) {
      for (const Module::NamedParameter& p : m.own_parameters()) users_[p.parameter].push_back(&m);
    });
  }
  /// Free parameters that `m` itself names.
  Parameters own(const Module& m) const {
    Parameters result;
    for (const Module::NamedParameter& p : m.own_parameters())
      if (!ShardKeeper::of(*p.parameter) && std::ranges::find(policy_.ignored, p.parameter) == policy_.ignored.end())
        result.insert(p.parameter);
    return result;
  }
  /// Free parameters that `m` and the modules below name, modules that are wrapped aside.
  Parameters below(const Module& m) const {
    if (is_fully_sharded(m)) return {};
    Parameters result = own(m);
    for (const auto& child : m.children()) result.merge(below(*child));
    return result;
  }
  /// Whether the unit of `m` may have them.
  bool are_used_in(const Module& m, const Parameters& parameters) const {
    return std::ranges::all_of(parameters, [&](const Parameter* p) {
      return std::ranges::all_of(users_.at(p), [&](const Module* user) { return is_below(user, m); });
    });
  }
  /// Bytes on a rank when they are gathered, the same number on all.
  std::int64_t bytes(const Parameters& parameters) const {
    std::int64_t sum = 0;
    for (const Parameter* p : parameters) {
      const DType dtype = p->value().dtype();
      const DType full = types_for(policy_.mp_policy, *p).param_dtype.value_or(dtype);
      sum += elements_per_rank(*p) * byte_size(is_floating(dtype) ? full : dtype);
    }
    return sum;
  }

 private:
  const UnitPolicy& policy_;
  std::map<const Parameter*, std::vector<const Module*>> users_;
};

// ---- by number of parameters ----

// Returns what is left for the units around `m`.
Parameters find_by_count(Module& m, const Module& model, std::int64_t count, const FreeParameters& free,
                         std::vector<UnitModules>& units) {
  if (is_fully_sharded(m)) return {};
  Parameters left = free.own(m);
  for (const auto& child : m.children()) left.merge(find_by_count(*child, model, count, free, units));
  std::int64_t elements = 0;
  for (const Parameter* p : left) elements += p->numel();
  if (&m == &model || is_container(m) || elements < count || !free.are_used_in(m, left)) return left;
  units.push_back({&m});
  return {};
}

// ---- by bytes ----

/// A module that goes into a unit whole, but for what earlier ones have taken.
struct Part {
  Module* module;
  std::int64_t bytes;
};

Parameters find_parts(Module& m, const Module& model, std::int64_t budget, const FreeParameters& free,
                      std::vector<Part>& parts) {
  if (is_fully_sharded(m)) return {};
  const bool may_be_one = &m != &model && !is_container(m);
  Parameters left = free.below(m);
  if (left.empty()) return {};
  if (const std::int64_t bytes = free.bytes(left); may_be_one && bytes <= budget && free.are_used_in(m, left)) {
    parts.push_back({&m, bytes});
    return {};
  }
  left = free.own(m);
  for (const auto& child : m.children()) left.merge(find_parts(*child, model, budget, free, parts));
  if (!may_be_one || left.empty() || !free.are_used_in(m, left)) return left;
  parts.push_back({&m, free.bytes(left)});
  return {};
}

// Neighbours together as long as they fit.
std::vector<UnitModules> join(const std::vector<Part>& parts, std::int64_t most) {
  std::vector<UnitModules> units;
  std::int64_t bytes = 0;
  for (const Part& part : parts) {
    if (units.empty() || bytes + part.bytes > most) {
      units.emplace_back();
      bytes = 0;
    }
    units.back().push_back(part.module);
    bytes += part.bytes;
  }
  return units;
}

// The smallest limit that needs no more units than the budget does.
std::int64_t balanced_limit(const std::vector<Part>& parts, std::int64_t budget) {
  const std::size_t units = join(parts, budget).size();
  std::int64_t too_small = 0, enough = budget;
  while (enough - too_small > 1) {
    const std::int64_t middle = too_small + (enough - too_small) / 2;
    (join(parts, middle).size() <= units ? enough : too_small) = middle;
  }
  return enough;
}

// ---- by name ----

void add_block(Module& block, bool is_fine, const FreeParameters& free, std::vector<UnitModules>& units) {
  Parameters left = free.below(block);
  if (left.empty()) return;
  if (is_fine)
    for (const auto& child : block.children()) {
      const Parameters inner = free.below(*child);
      const bool has_matrix = std::ranges::any_of(inner, [](const Parameter* p) { return p->shape().size() > 1; });
      if (!has_matrix || is_container(*child) || !free.are_used_in(*child, inner)) continue;
      units.push_back({child.get()});
      for (const Parameter* p : inner) left.erase(p);
    }
  if (!left.empty() && free.are_used_in(block, left)) units.push_back({&block});
}

UnitRule units_by_block(std::string_view name, bool is_fine) {
  return [name, is_fine](Module& model, const UnitPolicy& policy) {
    const FreeParameters free(model, policy);
    std::vector<UnitModules> units;
    for (Module* block : listed_modules(model, fmt::format("units \"{}\"", name)))
      add_block(*block, is_fine, free, units);
    return units;
  };
}

// Whether there is any, wrapped ones included.
bool find_where(Module& m, const std::function<bool(const Module&)>& is_unit, std::vector<UnitModules>& units) {
  bool found = false;
  for (const auto& child : m.children()) {
    const bool is_wrapped = is_fully_sharded(*child);
    if (!is_wrapped && find_where(*child, is_unit, units)) found = true;
    if (!is_unit(*child)) continue;
    found = true;
    if (!is_wrapped) units.push_back({child.get()});
  }
  return found;
}

}  // namespace

UnitRule units_where(std::string what, std::function<bool(const Module&)> is_unit) {
  return [what = std::move(what), is_unit = std::move(is_unit)](Module& model, const UnitPolicy&) {
    std::vector<UnitModules> units;
    check(find_where(model, is_unit, units), "no unit of fully_shard: the model has no {}", what);
    return units;
  };
}

UnitRule units_of_parameters(std::int64_t count) {
  check(count >= 1, "a unit must have at least one parameter, got {}", count);
  return [count](Module& model, const UnitPolicy& policy) {
    std::vector<UnitModules> units;
    find_by_count(model, model, count, FreeParameters(model, policy), units);
    return units;
  };
}

UnitRule units_of_bytes(std::int64_t bytes) {
  check(bytes >= 1, "the budget of a unit must be at least one byte, got {}", bytes);
  return [bytes](Module& model, const UnitPolicy& policy) {
    std::vector<Part> parts;
    find_parts(model, model, bytes, FreeParameters(model, policy), parts);
    return join(parts, balanced_limit(parts, bytes));
  };
}

UnitRule units_of_modules(std::vector<UnitModules> units) {
  return [units = std::move(units)](Module& model, const UnitPolicy&) {
    for (const UnitModules& unit : units)
      check(std::ranges::find(unit, &model) == unit.end(),
            "units that were listed: the model itself is among them; shard_units() adds it, last");
    return units;
  };
}

namespace {

using Parse = std::optional<std::int64_t> (*)(std::string_view);

// The number in a rule's name, as 32MB in "bytes=32MB"; nothing if the name is another rule's.
std::optional<std::int64_t> number_in(std::string_view name, std::string_view rule, Parse parse,
                                      std::string_view example) {
  if (!name.starts_with(rule)) return std::nullopt;
  constexpr std::int64_t kMost = 1'000'000'000'000'000;
  const std::optional<std::int64_t> number = parse(name.substr(rule.size()));
  check(number && *number >= 1 && *number <= kMost, "units \"{}\": {} takes a whole number from 1, as {}", name, rule,
        example);
  return number;
}

}  // namespace

UnitRule units_by(std::string_view name) {
  if (name == "block") return units_by_block("block", false);
  if (name == "fine") return units_by_block("fine", true);
  if (name == "coarse") return [](Module&, const UnitPolicy&) { return std::vector<UnitModules>(); };
  if (const auto count = number_in(name, "parameters=", parse_count, "parameters=32e6"))
    return units_of_parameters(*count);
  if (const auto bytes = number_in(name, "bytes=", parse_bytes, "bytes=32e6, bytes=32MB or bytes=32MiB"))
    return units_of_bytes(*bytes);
  const std::array<std::string, 5> names{"coarse", "block", "fine", "parameters=N", "bytes=N"};
  fail("no rule \"{}\" makes units{}; there are {}", name, did_you_mean(name, names), fmt::join(names, ", "));
}

std::vector<UnitHandle> shard_units(Module& model, const DeviceMesh& mesh, const UnitRule& rule,
                                    const UnitPolicy& policy) {
  check(!is_fully_sharded(model), "shard_units: the model is wrapped by fully_shard already");
  UnitTable table;
  for (const UnitModules& modules : rule(model, policy)) table.add(modules, mesh, policy);
  UnitPolicy of_root = policy;
  of_root.reshard_after_forward.reset();
  table.add({&model}, mesh, of_root);
  if (policy.offload) table.keep_in_memory(policy.offload->bytes_in_memory);
  return table.wrap();
}

}  // namespace sherd::nn
