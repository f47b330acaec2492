#include <sherd/train.h>

using namespace sherd;

int main() {
  train::TrainConfig config;
  config.plan.recompute = "full";
  resolve(config);
  const train::PredictedPeak peak = predict_peak(config, 0, 2, 256);
  fmt::print("a rank of two will hold {} bytes, in {}\n", peak.bytes, peak.when);
  return peak.bytes > 0 ? 0 : 1;
}
