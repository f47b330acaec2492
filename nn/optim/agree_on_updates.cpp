#include "nn/optim/agree_on_updates.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "nn/optim/loss_scaler.h"
#include "nn/random_rows.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

// A write to a home that has failed is the error of whoever reads it, until a load writes all of it.
void tear_what_did_not_get_home(Optimizer& optimizer) {
  const auto check_home = [&](const Tensor& tensor) {
    if (!home_of(tensor)) return;
    try {
      tensor.local().storage()->wait_to_read();
    } catch (const std::exception& error) {
      optimizer.mark_torn(fmt::format("what was updated did not get home: {}", error.what()));
    }
  };
  for (const Parameter* p : optimizer.parameters()) check_home(p->sharded_value());
  if (optimizer.offloaded())
    for (const OptimizerState& state : optimizer.state()) check_home(state.slot->value());
}

// Updates made, and why it is torn, if it is.
void report(Optimizer& optimizer, Facts& facts) {
  tear_what_did_not_get_home(optimizer);
  std::string torn = optimizer.torn(), updates = "?";
  try {
    updates = fmt::format("{}", optimizer.step_slot().value().item<float>());
  } catch (const std::exception& error) {
    if (torn.empty()) torn = fmt::format("its count of steps cannot be read: {}", error.what());
  }
  std::ranges::replace(torn, '\n', ' ');
  facts.emplace_back(std::move(updates), std::move(torn));
}

std::string values_of(LossScaler& scaler) {
  std::string values;
  for (const auto& [name, slot] : scaler.state())
    values += fmt::format("{}{}", values.empty() ? "" : ",", slot->value().item<float>());
  return values;
}

void take_values(LossScaler& scaler, const std::string& values) {
  std::istringstream text(values);
  for (const auto& [name, slot] : scaler.state()) {
    float value = 0;
    text >> value;
    text.ignore();  // the comma
    slot->assign(Tensor::scalar(value));
  }
}

std::string torn_anywhere(const std::vector<Facts>& by_rank, std::size_t optimizer) {
  std::vector<int> ranks;
  std::vector<std::string> updates;
  for (const Facts& facts : by_rank) {
    const auto& [made, torn] = facts[optimizer];
    if (!torn.empty()) return fmt::format("rank {}: {}", ranks.size(), torn);
    ranks.push_back(static_cast<int>(ranks.size()));
    updates.push_back(made);
  }
  const std::string differs = by_value(ranks, updates);
  return differs.empty() ? "" : "a step was left that others had finished: the number of updates is " + differs;
}

// This rank's, and those of other threads that have made some of the parameters: their optimizers are made there too.
std::vector<RankRegister*> registers_of(const std::vector<Parameter*>& parameters) {
  std::vector<RankRegister*> all{RankContext::current().rank_register.get()};
  for (const Parameter* p : parameters)
    if (std::ranges::find(all, p->home().get()) == all.end()) all.push_back(p->home().get());
  return all;
}

void agree_on(const std::vector<Optimizer*>& optimizers, const std::vector<LossScaler*>& scalers, ProcessGroup& group) {
  Facts own;  // a pair for each, as report() and values_of()
  std::string failure;
  try {
    for (Optimizer* optimizer : optimizers) optimizer->forget_step();
    for (LossScaler* scaler : scalers) scaler->forget_step();
    for (Optimizer* optimizer : optimizers) report(*optimizer, own);
    for (LossScaler* scaler : scalers) own.emplace_back(values_of(*scaler), "");
  } catch (const std::exception& error) { failure = error.what(); }
  if (RankContext::current().is_ghost()) return;
  const std::vector<std::string> failures = gather_text(group, failure);
  for (const std::size_t r : indices(failures))
    check(failures[r].empty(), "optimizers cannot go back to the state between steps on rank {}: {}", r, failures[r]);
  if (group.size() == 1) return;

  agree(group,
        Facts{{"the number of optimizers of the model", std::to_string(optimizers.size())},
              {"the number of loss scalers", std::to_string(scalers.size())}},
        {"ranks cannot compare their updates", "make the same on all ranks"});
  std::vector<Facts> by_rank;
  for (const std::string& text : gather_text(group, facts_to_text(own))) by_rank.push_back(facts_from_text(text));
  for (const std::size_t i : indices(optimizers))
    if (const std::string reason = torn_anywhere(by_rank, i); !reason.empty()) optimizers[i]->mark_torn(reason);
  for (const std::size_t i : indices(scalers)) {
    const std::string& values = by_rank[0][optimizers.size() + i].first;
    if (values != own[optimizers.size() + i].first) take_values(*scalers[i], values);
  }
}

}  // namespace

void agree_on_updates(const std::vector<Parameter*>& parameters, ProcessGroup& group) {
  const std::set<Parameter*> known(parameters.begin(), parameters.end());
  std::vector<Optimizer*> optimizers;
  std::vector<LossScaler*> scalers;  // which do not know their models
  for (RankRegister* made_by : registers_of(parameters)) {
    for (Optimizer* optimizer : Optimizer::living(made_by))
      if (std::ranges::any_of(optimizer->parameters(), [&](Parameter* p) { return known.contains(p); }))
        optimizers.push_back(optimizer);
    for (LossScaler* scaler : Registered<LossScaler>::living(made_by)) scalers.push_back(scaler);
  }
  agree_on(optimizers, scalers, group);
  take_back_random_calls(std::ranges::all_of(optimizers, [](const Optimizer* o) { return o->torn().empty(); }));
}

}  // namespace sherd::nn
