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

namespace sherd::nn {

namespace {

/// What a rank says of an optimizer, as one line: the number of updates, and why it is torn, if it is. Of a loss
/// scaler: its scale and counts.
struct Report {
  std::string updates, torn;
};

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

std::string report_of(Optimizer& optimizer) {
  tear_what_did_not_get_home(optimizer);
  std::string torn = optimizer.torn(), updates = "?";
  try {
    updates = fmt::format("{}", optimizer.step_slot().value().item<float>());
  } catch (const std::exception& error) {
    if (torn.empty()) torn = fmt::format("its count of steps cannot be read: {}", error.what());
  }
  std::ranges::replace(torn, '\n', ' ');
  return fmt::format("{} {}\n", updates, torn);
}

std::string report_of(LossScaler& scaler) {
  std::string values;
  for (const LossScalerState& s : scaler.state())
    values += fmt::format("{}{}", values.empty() ? "" : ",", s.slot->value().item<float>());
  return values + " \n";
}

void take_values(LossScaler& scaler, const std::string& values) {
  std::istringstream text(values);
  for (const LossScalerState& s : scaler.state()) {
    float value = 0;
    text >> value;
    text.ignore();  // the comma
    s.slot->assign(Tensor::scalar(value));
  }
}

std::vector<Report> read_reports(const std::string& text) {
  std::vector<Report> reports;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    reports.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return reports;
}

std::string torn_anywhere(const std::vector<std::vector<Report>>& by_rank, std::size_t optimizer) {
  for (std::size_t r = 0; r < by_rank.size(); ++r)
    if (const std::string& torn = by_rank[r][optimizer].torn; !torn.empty()) return fmt::format("rank {}: {}", r, torn);
  const std::string& first = by_rank[0][optimizer].updates;
  for (std::size_t r = 1; r < by_rank.size(); ++r)
    if (const std::string& updates = by_rank[r][optimizer].updates; updates != first)
      return fmt::format("a step was left that rank 0 or rank {} had finished: they have made {} and {} updates", r,
                         first, updates);
  return "";
}

// This rank's, and those of other threads that have made some of the parameters: their optimizers are made there too.
std::vector<RankRegister*> registers_of(const std::vector<Parameter*>& parameters) {
  std::vector<RankRegister*> all{RankContext::current().rank_register.get()};
  for (const Parameter* p : parameters)
    if (std::ranges::find(all, p->home().get()) == all.end()) all.push_back(p->home().get());
  return all;
}

void agree_on(const std::vector<Optimizer*>& optimizers, const std::vector<LossScaler*>& scalers, ProcessGroup& group) {
  std::string own, failure;
  try {
    for (Optimizer* optimizer : optimizers) optimizer->forget_step();
    for (LossScaler* scaler : scalers) scaler->forget_step();
    for (Optimizer* optimizer : optimizers) own += report_of(*optimizer);
    for (LossScaler* scaler : scalers) own += report_of(*scaler);
  } catch (const std::exception& error) { failure = error.what(); }
  if (RankContext::current().is_ghost()) return;
  const std::vector<std::string> failures = gather_text(group, failure);
  for (std::size_t r = 0; r < failures.size(); ++r)
    check(failures[r].empty(), "optimizers cannot go back to the state between steps on rank {}: {}", r, failures[r]);
  if (group.size() == 1) return;

  std::vector<std::vector<Report>> by_rank;
  for (const std::string& text : gather_text(group, own)) by_rank.push_back(read_reports(text));
  for (std::size_t r = 1; r < by_rank.size(); ++r)
    check(by_rank[r].size() == by_rank[0].size(),
          "rank 0 has {} optimizers of the model and loss scalers, rank {} has {}: make the same on all ranks",
          by_rank[0].size(), r, by_rank[r].size());
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    if (const std::string reason = torn_anywhere(by_rank, i); !reason.empty()) optimizers[i]->mark_torn(reason);
  const std::vector<Report>& mine = by_rank[static_cast<std::size_t>(group.rank())];
  for (std::size_t i = 0; i < scalers.size(); ++i)
    if (const std::size_t at = optimizers.size() + i; by_rank[0][at].updates != mine[at].updates)
      take_values(*scalers[i], by_rank[0][at].updates);
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
    for (LossScaler* scaler : LossScaler::living(made_by)) scalers.push_back(scaler);
  }
  agree_on(optimizers, scalers, group);
  take_back_random_calls(std::ranges::all_of(optimizers, [](const Optimizer* o) { return o->torn().empty(); }));
}

}  // namespace sherd::nn
