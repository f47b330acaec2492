#include "tools/train/run_record.h"

#include <bit>
#include <deque>

#include <nlohmann/json.hpp>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {

using nlohmann::json;

json bits(double value) { return std::bit_cast<std::int64_t>(value); }
double from_bits(const json& value) { return std::bit_cast<double>(value.get<std::int64_t>()); }

json bits(const std::optional<double>& value) { return value ? bits(*value) : json(); }
std::optional<double> optional_from_bits(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(from_bits(value));
}

json bits(const std::deque<double>& values) {
  json list = json::array();
  for (const double value : values) list.push_back(bits(value));
  return list;
}
std::deque<double> list_from_bits(const json& list) {
  std::deque<double> values;
  for (const json& value : list) values.push_back(from_bits(value));
  return values;
}

json to_json(const std::optional<StepMetrics::Regroup>& regroup) {
  if (!regroup) return {};
  return {{"lost", regroup->lost}, {"returned", regroup->returned}, {"seconds", bits(regroup->seconds)}};
}
std::optional<StepMetrics::Regroup> regroup_from_json(const json& value) {
  if (value.is_null()) return std::nullopt;
  return StepMetrics::Regroup{
      .lost = value.at("lost"), .returned = value.at("returned"), .seconds = from_bits(value.at("seconds"))};
}

}  // namespace

std::string to_text(const RunRecord& r) {
  const json object = {{"first_step", r.first_step},
                       {"run", r.run},
                       {"job", r.job},
                       {"save_folder", r.save_folder},
                       {"skipped_batches", r.skipped_batches},
                       {"replaces_saves", r.replaces_saves},
                       {"seconds_since_save", bits(r.seconds_since_save)},
                       {"is_step_open", r.is_step_open},
                       {"owes_save", r.owes_save},
                       {"last_line", r.last_line},
                       {"first_loss", bits(r.log.first_loss)},
                       {"val_loss", bits(r.log.val_loss)},
                       {"last_losses", bits(r.log.last_losses)},
                       {"skipped_steps", r.log.skipped_steps},
                       {"rollbacks", r.log.rollbacks},
                       {"watch", to_text(r.log.watch)},
                       {"replicas", r.replicas},
                       {"lost", r.counts.lost},
                       {"returned", r.counts.returned},
                       {"lost_seconds", bits(r.counts.lost_seconds)},
                       {"returned_seconds", bits(r.counts.returned_seconds)},
                       {"regroup", to_json(r.regroup)}};
  return object.dump();
}

RunRecord run_record_from_text(const std::string& text) {
  try {
    const json object = json::parse(text);
    RunRecord r;
    object.at("first_step").get_to(r.first_step);
    object.at("run").get_to(r.run);
    object.at("job").get_to(r.job);
    object.at("save_folder").get_to(r.save_folder);
    object.at("skipped_batches").get_to(r.skipped_batches);
    object.at("replaces_saves").get_to(r.replaces_saves);
    r.seconds_since_save = from_bits(object.at("seconds_since_save"));
    object.at("is_step_open").get_to(r.is_step_open);
    object.at("owes_save").get_to(r.owes_save);
    object.at("last_line").get_to(r.last_line);
    r.log.first_loss = optional_from_bits(object.at("first_loss"));
    r.log.val_loss = optional_from_bits(object.at("val_loss"));
    r.log.last_losses = list_from_bits(object.at("last_losses"));
    object.at("skipped_steps").get_to(r.log.skipped_steps);
    object.at("rollbacks").get_to(r.log.rollbacks);
    r.log.watch = watch_history_from_text(object.at("watch").get<std::string>(), "a rank's record of the run");
    object.at("replicas").get_to(r.replicas);
    object.at("lost").get_to(r.counts.lost);
    object.at("returned").get_to(r.counts.returned);
    r.counts.lost_seconds = from_bits(object.at("lost_seconds"));
    r.counts.returned_seconds = from_bits(object.at("returned_seconds"));
    r.regroup = regroup_from_json(object.at("regroup"));
    return r;
  } catch (const json::exception& error) {
    throw Error(fmt::format("what a rank says of the run cannot be read ({}); do all ranks run the same program?",
                            error.what()));
  }
}

}  // namespace sherd
