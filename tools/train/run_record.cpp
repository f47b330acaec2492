#include "tools/train/run_record.h"

#include "runtime/op/attrs/attr_text.h"
#include "runtime/tensor/error.h"

namespace sherd::train {

namespace {

// Keys of a save.
constexpr const char* kSkippedSteps = "skipped_steps";
constexpr const char* kSkippedBatches = "skipped_batches";
// What the watch knows of the steps before a save: the next ones are judged as if the run had not been interrupted.
constexpr const char* kWatch = "divergence_watch";
constexpr const char* kOwed = "owed_evaluation";  // the metrics line of its step

}  // namespace

using State = RunState;
const AttrField RunState::fields[7] = {attr<&State::updates>("updates"),
                                       attr<&State::skipped>("skipped"),
                                       attr<&State::log>("log"),
                                       attr<&State::last_line>("last_line"),
                                       attr<&State::owed_line>("owed_line"),
                                       attr<&State::is_step_open>("is_step_open"),
                                       attr<&State::owes_save>("owes_save")};

using Record = RunRecord;
const AttrField RunRecord::fields[8] = {attr<&Record::first_step>("first_step"),
                                        attr<&Record::state>("state"),
                                        attr<&Record::saves>("saves"),
                                        attr<&Record::replaces_saves>("replaces_saves"),
                                        attr<&Record::seconds_since_save>("seconds_since_save"),
                                        attr<&Record::replicas>("replicas"),
                                        attr<&Record::counts>("counts"),
                                        attr<&Record::regroup>("regroup").optional()};

std::string to_text(const RunRecord& record) { return AttrsView(record).print(); }

RunRecord run_record_from_text(const std::string& text) {
  try {
    return parse_attrs(attr_kind<RunRecord>, text).as<RunRecord>();
  } catch (const Error& error) {
    throw Error(fmt::format("what a rank says of the run cannot be read ({}); do all ranks run the same program?",
                            error.message()));
  }
}

void note_state(ckpt::Manifest& manifest, const RunState& state, bool counts_skips) {
  if (!state.owed_line.empty()) manifest.state[kOwed] = state.owed_line;
  if (counts_skips && state.log.skipped_steps > 0) manifest.state[kSkippedSteps] = state.log.skipped_steps;
  if (state.skipped.count() > 0) manifest.state[kSkippedBatches] = state.skipped.text();
  const DivergenceWatch::History& watch = state.log.watch;
  if (watch.skips_in_a_row > 0 || !watch.losses.empty()) manifest.state[kWatch] = to_text(watch);
}

RunState state_of(const ckpt::Manifest& manifest, const std::string& source) {
  RunState state{.updates = manifest.step};
  const auto has = [&](const char* key) { return manifest.state.contains(key); };
  if (has(kSkippedSteps)) state.log.skipped_steps = manifest.state_value<std::int64_t>(kSkippedSteps);
  if (has(kSkippedBatches)) state.skipped = SkippedBatches(manifest.state_value<std::string>(kSkippedBatches), source);
  if (has(kOwed)) state.owed_line = manifest.state_value<std::string>(kOwed);
  if (has(kWatch)) state.log.watch = watch_history_from_text(manifest.state_value<std::string>(kWatch), source);
  return state;
}

}  // namespace sherd::train
