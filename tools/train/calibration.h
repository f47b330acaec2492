#pragma once
// What `sherd calibrate` has found out on this machine, where it is kept, and whether it holds here.
#include <optional>
#include <string>

#include "runtime/exec/cluster.h"
#include "runtime/os/settings.h"
#include "tools/train/links.h"

namespace sherd::train {

/// What a calibration is of: the CPU by its name, and the level of the kernels.
std::string machine_name();

/// The file of this machine, this build and so many ranks, in `folder`.
std::string calibration_file(const std::string& folder, int ranks);

/// A calibration, and what is to be said of it: how old it is and what differs here; without one, why there is none.
struct FoundCalibration {
  std::optional<Calibration> made{};
  std::string text{};
};
/// Looks into the cache folder (os/settings.h). `threads` of each rank; 0: not known.
FoundCalibration find_calibration(int ranks, const std::string& folder = cache_folder(), int threads = 0);

/// What of a calibration does not hold for `ranks` ranks of this machine: "of another machine, ..."; empty: all holds.
std::string mismatch_of(const Calibration& calibration, int ranks, int threads = 0);

/// What is to be said of a calibration here: "calibrated 3 days ago; of another machine, ...".
std::string said_of(const Calibration& calibration, int ranks, int threads = 0);

/// So many ranks on this host, by a calibration of it; `links` shape axes. Products of a type that was not measured
/// take those of bf16, else of f32, and count as extrapolated.
Cluster calibrated_cluster(Calibration calibration, int ranks, const Links& links);
/// What a shaped link between ranks takes, by axis; "" is of all that have none of their own.
std::map<std::string, LinkPrice, std::less<>> link_prices(const Links& links);

}  // namespace sherd::train
