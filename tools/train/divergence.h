#pragma once
// Which steps of a run are no steps: their loss or gradient norm is not finite, or the loss has jumped.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/op/attrs/attr_list.h"
#include "tools/train/metrics.h"

namespace sherd::train {

/// Steps without an update that may follow one another: more than a loss scale takes from the first, 2^16, to the last.
inline constexpr int kMostSkips = 32;

struct DivergenceRule {
  /// Where the loss is not scaled, a step whose gradient norm is not finite is skipped and counted, as a loss scaler
  /// does; at most kMostSkips in a row.
  bool skips = false;
  /// Where it is scaled, a step that is skipped at this scale, or a smaller one, has diverged: it cannot back off.
  double min_loss_scale = 0;
  /// A loss above the median of the last steps by more than this many of their median deviations has diverged; 0: no
  /// loss is too large.
  double spike = 0;
};

/// A step that has diverged, and why in words that complete "the run has diverged in step 7: ".
struct Divergence {
  StepMetrics metrics;
  std::string what;
  bool is_spike = false;  ///< everything is finite, and the update is made
};

/// Judges the steps of a run in their order, on every rank alike.
class DivergenceWatch {
 public:
  explicit DivergenceWatch(const DivergenceRule& rule) : rule_(rule) {}
  enum class Verdict { good, skipped, not_finite, spike };
  Verdict judge(const StepMetrics& metrics);
  /// For a step judged not_finite or spike.
  Divergence describe(const StepMetrics& metrics, Verdict verdict) const;
  /// What it knows of the last steps: of another watch, which has judged them. Losses are finite.
  struct History {
    int skips_in_a_row = 0;
    std::vector<double> losses{};  ///< of the last good steps
    static constexpr AttrField fields[] = {attr<&History::skips_in_a_row>("skips_in_a_row"),
                                           attr<&History::losses>("losses")};
  };
  const History& history() const { return history_; }
  /// The run goes back to an earlier step: what is known of the last ones does not count.
  void forget() { history_ = {}; }
  void go_on_from(History history) { history_ = std::move(history); }

 private:
  struct Usual {
    double median, deviation;
  };
  Usual usual_loss() const;
  bool is_spike(double loss) const;

  const DivergenceRule rule_;
  History history_;
};

/// One line, for saves and for ranks of another group. Losses keep their bits.
std::string to_text(const DivergenceWatch::History& history);
/// Error for other text than to_text() makes, which `source` names.
DivergenceWatch::History watch_history_from_text(std::string_view text, const std::string& source);

}  // namespace sherd::train
