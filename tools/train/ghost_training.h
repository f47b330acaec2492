#pragma once
// A run on a ghost of one of its ranks, for tools that look at it: at its updates, its recordings, its memory.
#include <cstdint>
#include <functional>
#include <optional>

#include "nn/random_rows.h"
#include "runtime/exec/memory_log.h"
#include "runtime/exec/timeline_recording.h"
#include "tools/train/predicted_peak.h"
#include "tools/train/train_step.h"

namespace sherd::train {

struct PredictOptions {
  std::int64_t memory_limit = 0;  ///< of the ghost; 0: none. Over it predict_peak() throws OutOfMemory, as the run does
  bool evaluates = true;          ///< forwards of micro-batches without a tape, as the run's evaluations
  TrainStep::Options step{};      ///< of the ghost's updates
  /// As nn::set_batch_part(): of a run whose mesh has lost ranks.
  std::optional<nn::BatchPart> batch_part{};
  /// If set, the update of that number, counted from 1, is written into the timeline.
  struct Record {
    Timeline* timeline;
    int update;
    TimelineRecording::Site site{};
  };
  std::optional<Record> record{};
  /// Called on the ghost with its step: before the first update, and after each, with the number of updates made.
  std::function<void(TrainStep& step, int updates)> observe{};
  /// If set, a log watches the ghost's memory, and this looks at it: in the end, or as OutOfMemory is thrown. `step` is
  /// null if there was no memory to build one.
  std::function<void(const MemoryLog& log, TrainStep* step)> look{};
};

/// The peak as predict_peak() without options has it, which makes a first step, settled steps and an evaluation.
PredictedPeak predict_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary,
                           const PredictOptions& options);

}  // namespace sherd::train
