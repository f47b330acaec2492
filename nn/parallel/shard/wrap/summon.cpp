#include "nn/parallel/shard/wrap/summon.h"

#include <algorithm>
#include <exception>

#include "dtensor/api.h"
#include "nn/parallel/data_mesh.h"
#include "nn/parallel/shard/wrap/wrap.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

/// Shards of a unit share a version, by which a scope knows that nobody else has written them.
struct FullParameters::SummonedUnit {
  mutable std::uint32_t shard_version;
};

namespace {

// Parameters that units have, each once.
std::vector<Parameter*> kept_parameters(Module& module, bool recurse) {
  std::vector<Parameter*> parameters;
  if (recurse) parameters = module.parameters();
  else
    for (const Module::NamedParameter& p : module.own_parameters())
      if (std::ranges::find(parameters, p.parameter) == parameters.end()) parameters.push_back(p.parameter);
  std::erase_if(parameters, [](const Parameter* p) { return ShardKeeper::of(*p) == nullptr; });
  return parameters;
}

// Once a gather has failed on one rank the groups are out of use on all.
constexpr const char* kRemedy =
    "FullParameters was left while ranks gather: call reset_after_error(model) on all of them";

void check_may_begin(const std::vector<Parameter*>& parameters) {
  const RankContext& context = RankContext::current();
  check(!context.capture && !in_backward() && !context.module_path,
        "full parameters are summoned between steps, not in a forward, a backward or a step that is recorded");
  for (const Parameter* p : parameters) {
    check(!p->sharded_value().local().is_meta(), "full parameters: \"{}\" has no values; call model.materialize(seed)",
          p->name());
    // Several scopes may have some parameters of a unit, which are plain then.
    check(!ShardKeeper::of(*p)->is_summoned() || p->value().is_distributed(),
          "full parameters: \"{}\" is in another scope that summoned it", p->name());
  }
}

// Each once, in the order of the parameters, which is that of all ranks.
std::vector<ProcessGroup*> root_groups_of(const std::vector<Parameter*>& parameters) {
  std::vector<ProcessGroup*> groups;
  for (const Parameter* p : parameters) {
    ProcessGroup* const group = &root_group_of(Spec::from(p->sharded_value()).mesh());
    if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

// In which the ranks of the parameters' own meshes meet, one after the other: ranks of the root that have other
// parameters, as the stages of a pipeline, need not come.
std::vector<ProcessGroup*> groups_of(const std::vector<Parameter*>& parameters) {
  std::vector<ProcessGroup*> groups;
  for (const Parameter* p : parameters) {
    const auto& unit = static_cast<const UnitBuffers&>(*ShardKeeper::of(*p));  // there is no other kind of keeper
    for (ProcessGroup* group : unit.pieces().groups_of(p->sink_place()))
      if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

// Compares the units of `parameters` that no forward has compared, over the axes of the parameters alone.
void agree_on_units_of(Module& module, const std::vector<Parameter*>& parameters) {
  Module* top = &module;
  while (top->parent()) top = top->parent();
  std::vector<Wrap*> wraps = wraps_below(*top);
  std::erase_if(wraps, [&](const Wrap* wrap) {
    return wrap->is_agreed() ||
           std::ranges::none_of(parameters, [&](const Parameter* p) { return wrap->owns(*ShardKeeper::of(*p)); });
  });
  try {
    agree_on_units(wraps, groups_of(parameters));
  } catch (CommError& error) {  // a group was out of use before
    error.add("remedy", kRemedy);
    throw;
  }
}

// One of its own for each, also where this rank has everything.
std::vector<Tensor> full_tensors(const std::vector<Parameter*>& parameters) {
  for (const Parameter* p : parameters) p->reshard();  // what was gathered makes room
  std::vector<Tensor> full;
  try {
    for (const Parameter* p : parameters) {
      const Tensor& value = p->sharded_value();
      full.push_back(Tensor::empty(p->shape(), value.dtype(), value.local().device(), MemoryCategory::unsharded));
    }
  } catch (const OutOfMemory& error) { throw OutOfMemory(fmt::format("full parameters: {}", error.what())); }
  return full;
}

// The same on all ranks, or an Error on all, after which nobody waits for anybody. This one is `rank` in messages.
std::vector<Tensor> agreed_full_tensors(const std::vector<Parameter*>& parameters, int rank) {
  std::vector<Tensor> full;
  std::exception_ptr failure;  // of this rank
  std::string told;            // the first that this rank has heard of
  const auto note_failure = [&] {
    if (!failure) failure = std::current_exception();
    if (told.empty()) told = fmt::format("rank {}: {}", rank, current_exception_text());
  };
  try {
    check_may_begin(parameters);
    full = full_tensors(parameters);
  } catch (...) { note_failure(); }
  for (ProcessGroup* group : groups_of(parameters)) {  // what is told in one is told in the next, so it reaches all
    try {
      for (const std::string& text : gather_text(*group, told))
        if (told.empty()) told = text;
    } catch (CommError& error) {  // the group was out of use before
      error.add("remedy", kRemedy);
      note_failure();
    } catch (...) { note_failure(); }
  }
  if (failure) std::rethrow_exception(failure);
  if (!told.empty()) fail("{}", told);
  return full;
}

void gather_into(const std::vector<Tensor>& full, const std::vector<Parameter*>& parameters) {
  try {
    for (const std::size_t i : indices(full)) {
      const Parameter& p = *parameters[i];
      copy_into(full[i], view(full_tensor(p.sharded_value().detach()).detach(), p.shape()));
      leave_memory(p.sharded_value());
    }
    for (const Tensor& t : full) t.storage()->wait_to_read();
  } catch (Error& error) {
    error.add("remedy", kRemedy);
    throw;
  }
}

}  // namespace

Parameter* FullParameters::Held::parameter() const {
  auto* const p = static_cast<Parameter*>(static_cast<const Leaf*>(leaf.get())->slot);
  return p && ShardKeeper::of(*p) ? p : nullptr;
}

std::vector<FullParameters::Held> FullParameters::gather(const std::vector<Parameter*>& parameters) {
  const GradMode off(false);
  const std::vector<ProcessGroup*> roots = root_groups_of(parameters);
  const std::vector<Tensor> full = agreed_full_tensors(parameters, roots.empty() ? 0 : roots[0]->rank());
  try {
    gather_into(full, parameters);
  } catch (...) {  // peers are on their way into the next gather
    const std::string reason = current_exception_text();
    for (ProcessGroup* group : roots)
      if (group->size() > 1) group->abort(reason);
    throw;
  }
  std::vector<Held> held;
  for (const std::size_t i : indices(full)) {
    const Parameter& p = *parameters[i];
    auto unit = std::static_pointer_cast<const SummonedUnit>(ShardKeeper::of(p)->summoned.lock());
    if (!unit) unit = std::make_shared<SummonedUnit>(p.sharded_value().local().storage()->version());
    ShardKeeper::of(p)->summoned = unit;
    held.push_back({NodeRef(p.leaf()), full[i], std::move(unit)});
  }
  return held;
}

FullParameters::FullParameters(Module& module, const Options& options)
    : writes_(options.write_back), exceptions_(std::uncaught_exceptions()) {
  const std::vector<Parameter*> parameters = kept_parameters(module, options.recurse);
  agree_on_units_of(module, parameters);
  held_ = gather(parameters);
  for (const Held& h : held_) h.parameter()->present(h.parameter()->attach(h.full));
}

FullParameters::~FullParameters() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) writes_ = false;
  close();
}

void FullParameters::close() {
  const std::string why_not = writes_ ? obstacle() : std::string();
  release();
  if (writes_ && why_not.empty()) write_back();
  held_.clear();
  if (!why_not.empty()) fail("{}", why_not);
}

// All are asked before the first is written.
std::string FullParameters::obstacle() const {
  for (const Held& h : held_) {
    const Parameter* const p = h.parameter();
    if (!p) continue;
    if (p->value().is_distributed() || p->value().storage() != h.full.storage())
      return fmt::format(
          "full parameters: another tensor was put into \"{}\", so nothing was written back; write to the tensor that "
          "is there, as assign() does",
          p->name());
    if (p->sharded_value().local().storage()->version() != h.unit->shard_version)
      return fmt::format(
          "full parameters: the shard of \"{}\" was written in between, so nothing was written back; end the scope "
          "before optimizer steps and loads",
          p->name());
  }
  return {};
}

// Whether it trains may have changed since the shard was attached to the slot's leaf.
void FullParameters::release() const {
  for (const Held& h : held_) {
    Parameter* const p = h.parameter();
    if (!p) continue;
    if (p->sharded_value().requires_grad() != p->requires_grad())
      ShardKeeper::of(*p)->keep(*p, p->attach(p->sharded_value()));
    p->present(p->sharded_value());
  }
}

void FullParameters::write_back() const {
  const GradMode off(false);
  for (const Held& h : held_) {
    const Parameter* const p = h.parameter();
    if (!p) continue;
    const Tensor& shard = p->sharded_value();
    const Spec& spec = Spec::from(shard);
    Tensor part = view(h.full, shard.shape());
    for (const int d : up_to(shard.ndim())) {
      const Spec::Range range = spec.local_range(d, shard.size(d));
      part = narrow(part, d, range.begin, range.size());
    }
    copy_into(shard.local().detach(), part);
    leave_memory(shard);
  }
  for (const Held& h : held_)
    if (const Parameter* const p = h.parameter())
      h.unit->shard_version = p->sharded_value().local().storage()->version();
}

}  // namespace sherd::nn
