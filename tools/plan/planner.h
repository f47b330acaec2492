#pragma once
// All rows of a plan: each forecast once, and priced as often as somebody asks.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/plan/forecast.h"
#include "tools/plan/recommend.h"
#include "tools/plan/rows.h"

namespace sherd::plan {

/// What rows are planned for.
struct PlannedFor {
  int ranks = 1;
  std::int64_t vocabulary = 256;
  std::int64_t memory_limit = 0;     ///< bytes of a rank; 0: none
  std::optional<Cluster> cluster{};  ///< none: nothing is priced
  TrainConfig base{};                ///< what flags of a row come on top of
};

/// A row, and what is predicted of it.
struct Option {
  TrainConfig config{};
  std::string name{}, why{};
  std::string left_out{};  ///< why there is no forecast; else empty
  Forecast forecast{};
  std::optional<Simulation> simulated{};  ///< with a cluster
  bool has_forecast() const { return left_out.empty(); }
};

/// Predictions may be off by this share of a step, one row against another: faster by less is a tie.
inline constexpr double kTie = 0.02;

/// Forecasts and, with a cluster, prices a config. What its ranks cannot do is in left_out.
Option option_of(const TrainConfig& config, const PlannedFor& planned);
/// The same with a cluster, of four micro-batches at most: each after the fourth takes as long as the fourth, and no
/// more memory. The timeline is that of four.
Option option_of_many(const TrainConfig& config, const PlannedFor& planned);
/// As choose() takes them; options without a forecast fit nowhere.
std::vector<Candidate> candidates_of(const std::vector<Option>& options, const PlannedFor& planned);
/// Choice among options; indices are theirs.
Choice choose(const std::vector<Option>& options, const PlannedFor& planned);

/// Names of settings with others in their place, as of flags: {{"batch", "64"}}.
using Changes = std::vector<std::pair<std::string, std::string>>;
/// As "--batch 64".
std::string as_flags(const Changes& changes);
/// Error naming key and value.
TrainConfig with(const TrainConfig& config, const Changes& changes);
/// `option` with others in their place, under its name; what does not go together is in left_out.
Option changed(const Option& option, const Changes& changes, const PlannedFor& planned);

/// Which option wins for a changed setting, at as few forecasts as bounds leave: those that need more memory than there
/// is before anything grows, those that compute or communicate for longer than another one takes, and those that
/// another one beats now in everything, which is a guess, are left out.
class Rivals {
 public:
  /// Both outlive it.
  Rivals(const std::vector<Option>& options, const PlannedFor& planned) : options_(options), planned_(planned) {}
  const std::vector<Option>& options() const { return options_; }
  const PlannedFor& planned() const { return planned_; }
  /// The winner where each config is changed so, forecast; nothing where nothing fits. A step then has `times` as many
  /// tokens, and communicates as much as before.
  std::optional<Option> winning(const Changes& changes, double times) const;
  /// The winner where a step has so many micro-batches, each as large as now. Each after the fourth takes as long as
  /// the fourth: they are forecast no further. One thread at a time calls this; winning() is for any number.
  std::optional<Option> of_micro_batches(std::int64_t count) const;

 private:
  /// The winner among what `again` makes of each option's index.
  std::optional<Option> best_of(double times, bool same_link, const std::function<Option(std::size_t)>& again) const;
  const Option& with_micro_batches(std::size_t index, std::int64_t count) const;

  const std::vector<Option>& options_;
  const PlannedFor& planned_;
  mutable std::map<std::pair<std::size_t, std::int64_t>, Option> few_micro_batches_;
};

}  // namespace sherd::plan
