// Applies a plan in two halves: everything is looked up and checked first, so that an error leaves the module
// unchanged; then parameters, sinks and hooks are set.
#include "nn/parallel/tensor_parallel.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "dtensor/api.h"
#include "nn/parallel/distributed_sink.h"
#include "nn/parallel/style_hook.h"
#include "nn/shardable.h"
#include "runtime/tensor/nearest.h"

namespace sherd::nn {

namespace {

// Marks a module that parallelize() was called on, and owns the sink of its parameters.
class Parallelized final : public ModuleHook {
 public:
  Parallelized(const DeviceMesh& mesh, const std::vector<Parameter*>& parameters)
      : mesh_(mesh), sink_(mesh, parameters) {}
  void abandon_forward(Module&, std::string_view reason) noexcept override {
    if (mesh_.size() > 1) mesh_.group().abort(reason);
  }
  bool can_recompute() const override { return true; }

 private:
  DeviceMesh mesh_;
  DistributedSink sink_;
};

bool is_marked(const Module& module) {
  return std::any_of(module.hooks().begin(), module.hooks().end(),
                     [](const auto& hook) { return dynamic_cast<const Parallelized*>(hook.get()) != nullptr; });
}

struct Part {
  std::string path;  // below the module that is parallelized
  Module* module;
  struct Use {
    const std::string* style;
    const Style::Layout* layout;
  };
  std::vector<Use> uses{};
};

// The module and all below, without those that an inner call has parallelized.
void collect(Module& module, const std::string& path, std::vector<Part>& parts) {
  parts.push_back({path, &module});
  for (const auto& child : module.children())
    if (!is_marked(*child)) collect(*child, path.empty() ? child->name() : path + "." + child->name(), parts);
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> atoms;
  for (std::size_t start = 0; !path.empty() && start <= path.size();) {
    const std::size_t end = std::min(path.find('.', start), path.size());
    atoms.push_back(path.substr(start, end - start));
    start = end + 1;
  }
  return atoms;
}

bool matches(const std::string& pattern, const std::string& path) {
  const std::vector<std::string> a = split(pattern), b = split(path);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::string& wanted, const std::string& name) {
    return ::fnmatch(wanted.c_str(), name.c_str(), 0) == 0;
  });
}

using Roles = Shardable::Roles;

Roles roles_of(const Module& module) {
  const auto* const shardable = dynamic_cast<const Shardable*>(&module);
  return shardable != nullptr ? shardable->roles() : Roles();
}

const Style::Layout& layout_for(const Style& style, const Module& module) {
  const Roles roles = roles_of(module);
  if (!roles.in.empty() && style.linear) return *style.linear;
  if (!roles.vocabulary.empty() && style.embedding) return *style.embedding;
  check(style.any.has_value(),
        "style {} is for Linear and Embedding modules; \"{}\" is neither, nor does it say what may be sharded of it "
        "(nn::Shardable)",
        style.name, module.label());
  return *style.any;
}

void apply_patterns(const Plan& plan, std::vector<Part>& parts) {
  for (const auto& [pattern, style] : plan) {
    bool is_used = false;
    for (Part& part : parts) {
      if (!matches(pattern, part.path)) continue;
      is_used = true;
      part.uses.push_back({&style.name, &layout_for(style, *part.module)});
    }
    if (is_used) continue;
    std::vector<std::string> paths;
    for (const Part& part : parts) paths.push_back(part.path);
    fail("the plan's pattern \"{}\" (style {}) matches no module below \"{}\"{}", pattern, style.name,
         parts[0].module->label(), did_you_mean(pattern, paths));
  }
}

struct ParameterPlacement {
  Placement placement;
  std::string by;  // "style rowwise of \"head\""
};
using ParameterPlacements = std::map<const Parameter*, ParameterPlacement>;

std::string names_of(const std::vector<Module::NamedParameter>& parameters) {
  std::string names;
  for (const Module::NamedParameter& p : parameters)
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", p.name);
  return names.empty() ? "none" : names;
}

void add_placement(const Part& part, const Part::Use& use, const Style::Layout::Cut& wanted,
                   ParameterPlacements& placements) {
  const std::string by = fmt::format("style {} of module \"{}\"", *use.style, part.module->label());
  const auto& own = part.module->own_parameters();
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const Module::NamedParameter& p) { return p.name == wanted.parameter; });
  if (found == own.end()) {
    check(wanted.is_optional, "{} places a parameter \"{}\", which the module does not have; it has {}", by,
          wanted.parameter, names_of(own));
    return;
  }
  Parameter& parameter = *found->parameter;
  Placement placement = wanted.placement;
  const int ndim = parameter.shape().size();
  check(!placement.is_partial(), "{}: parameter \"{}\" cannot be Partial; Shard and Replicate can", by,
        parameter.name());
  if (placement.is_shard()) {
    check(placement.dim >= -ndim && placement.dim < ndim, "{}: parameter \"{}\" of shape {} has no dim {} to shard", by,
          parameter.name(), parameter.shape(), placement.dim);
    placement.dim = normalize_dim(placement.dim, ndim);
  }
  const auto [known, is_new] = placements.try_emplace(&parameter, ParameterPlacement{placement, by});
  check(is_new || known->second.placement == placement,
        "parameter \"{}\" is placed {} by {} and {} by {}; a parameter has one placement", parameter.name(),
        to_string(known->second.placement), known->second.by, to_string(placement), by);
}

std::vector<Style::Layout::Cut> cuts_of(const Style::Layout& layout, const Module& module) {
  using Side = Style::Layout::Side;
  std::vector<Style::Layout::Cut> cuts = layout.parameters;
  if (layout.side == Side::none) return cuts;
  const Roles roles = roles_of(module);
  const std::vector<Roles::Dim>& dims = layout.side == Side::out  ? roles.out
                                        : layout.side == Side::in ? roles.in
                                                                  : roles.vocabulary;
  for (const Roles::Dim& dim : dims) cuts.push_back({dim.parameter, Shard(dim.dim), /*is_optional=*/true});
  const auto has = [&](const Roles::Dim& dim) {
    return std::ranges::find(module.own_parameters(), dim.parameter, &Module::NamedParameter::name) !=
           module.own_parameters().end();
  };
  check(std::ranges::any_of(dims, has), "module \"{}\" has none of the parameters that its roles() name; it has {}",
        module.label(), names_of(module.own_parameters()));
  return cuts;
}

ParameterPlacements collect_placements(const std::vector<Part>& parts) {
  ParameterPlacements placements;
  for (const Part& part : parts)
    for (const Part::Use& use : part.uses)
      for (const Style::Layout::Cut& wanted : cuts_of(*use.layout, *part.module))
        add_placement(part, use, wanted, placements);
  return placements;
}

// Attention is sharded by heads: a rank must hold complete heads, and the key-value heads that its query heads read.
void check_heads(const Module& attention, const DeviceMesh& mesh, const ParameterPlacements& placements) {
  const Roles roles = roles_of(attention);
  if (roles.heads == 0) return;
  const auto is_sharded = [&](const Parameter* parameter) {
    const auto found = placements.find(parameter);
    return found != placements.end() && found->second.placement.is_shard();
  };
  if (std::ranges::none_of(attention.parameters(), is_sharded)) return;
  const auto check_count = [&](std::int64_t count, const char* what) {
    check(
        count % mesh.size() == 0,
        "attention \"{}\": {} {} do not divide among the {} ranks of axis \"{}\"; use an axis whose size divides them",
        attention.label(), count, what, mesh.size(), mesh.axis_name());
  };
  check_count(roles.heads, "heads");
  check_count(roles.kv_heads, "key-value heads");
}

// A module outside of this call must not share a parameter with it: it would find a distributed tensor there.
void check_ties(const Module& module, const std::set<const Module*>& inside, const std::set<const Parameter*>& taken) {
  if (!inside.contains(&module))
    for (const Module::NamedParameter& p : module.own_parameters())
      check(!taken.contains(p.parameter),
            "parameter \"{}\" is also used by module \"{}\", which this call does not parallelize: call it on a module "
            "above both",
            p.parameter->name(), module.label());
  for (const auto& child : module.children()) check_ties(*child, inside, taken);
}

const Module& topmost(const Module& module) { return module.parent() ? topmost(*module.parent()) : module; }

// The parameters to distribute, each once. An inner call may have distributed a tied one with the same placement.
std::vector<Parameter*> collect_parameters(const std::vector<Part>& parts, const DeviceMesh& mesh,
                                           const ParameterPlacements& placements) {
  std::vector<Parameter*> result;
  for (const Part& part : parts)
    for (const Module::NamedParameter& p : part.module->own_parameters()) {
      if (std::find(result.begin(), result.end(), p.parameter) != result.end()) continue;
      const Tensor& value = p.parameter->value();
      if (!value.is_distributed()) {
        result.push_back(p.parameter);
        continue;
      }
      const Spec& spec = Spec::from(value);
      check(spec.mesh_id() == mesh.id(),
            "parameter \"{}\" is {} over {} already; parallelize() comes before fully_shard() and on one mesh",
            p.parameter->name(), describe(value), spec.mesh().describe());
      const auto found = placements.find(p.parameter);
      check(found == placements.end() || found->second.placement == spec.placement(0),
            "parameter \"{}\" is {} already, {} places it {}", p.parameter->name(), describe(value), found->second.by,
            to_string(found->second.placement));
    }
  return result;
}

void distribute_parameter(Parameter& parameter, const Spec* spec) {
  const Tensor value = parameter.value().detach();
  if (value.is_meta()) {
    const Tensor local = Tensor::empty(spec->local_shape(value.shape()), value.dtype(), Device::meta());
    return parameter.set(Tensor::distributed(value.shape(), spec, local));
  }
  const Tensor distributed = distribute(value, spec->mesh(), spec->placement(0), kOwnData);
  distributed.local().storage()->retag(MemoryCategory::parameters);
  parameter.set(distributed);
}

}  // namespace

bool is_parallelized(const Module& module) {
  return is_marked(module) || (module.parent() && is_parallelized(*module.parent()));
}

void parallelize(Module& module, const DeviceMesh& mesh, const Plan& plan) {
  check(mesh.ndim() == 1, "parallelize \"{}\": a plan speaks of one mesh axis, and this is {}; pass one, mesh[\"tp\"]",
        module.label(), mesh.describe());
  check(!is_parallelized(module), "parallelize: module \"{}\", or one above it, is parallelized already",
        module.label());
  std::vector<Part> parts;
  collect(module, "", parts);
  apply_patterns(plan, parts);
  const ParameterPlacements placements = collect_placements(parts);
  const std::vector<Parameter*> parameters = collect_parameters(parts, mesh, placements);
  std::set<const Module*> inside;
  module.for_each_module([&](const Module& m) { inside.insert(&m); });
  check_ties(topmost(module), inside, {parameters.begin(), parameters.end()});
  for (const Part& part : parts) check_heads(*part.module, mesh, placements);

  for (Parameter* parameter : parameters) {
    const auto found = placements.find(parameter);
    distribute_parameter(*parameter, Spec::of(mesh, found == placements.end() ? Replicate() : found->second.placement));
  }
  module.add_hook(std::make_shared<Parallelized>(mesh, parameters));
  for (const Part& part : parts) {
    for (const auto& buffer : part.module->own_buffers())
      buffer->set(Tensor::distributed(buffer->value().shape(), Spec::replicate(mesh), buffer->value()));
    for (const Part::Use& use : part.uses)
      part.module->add_hook(std::make_shared<StyleHook>(*use.style, mesh, *use.layout));
  }
}

Plan with_prefix(const std::string& prefix, const Plan& plan) {
  Plan result;
  for (const auto& [pattern, style] : plan)
    result.emplace_back(prefix.empty() || pattern.empty() ? prefix + pattern : prefix + "." + pattern, style);
  return result;
}

}  // namespace sherd::nn
