// What tools/soak/survive.py asks: how far the losses of a run are from those of one rank that has taken the same rows.
//
//   soak_one_rank CONFIG.toml METRICS.jsonl REPLICAS      prints "STEPS LARGEST-DIFFERENCE", as a share of the loss
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "runtime/cpu/parallel.h"
#include "tests/tools/one_rank_run.h"
#include "tools/train/config.h"

int main(int argc, char** argv) {
  using namespace sherd;
  using namespace sherd::train;
  if (argc != 4) {
    fmt::print(stderr, "usage: soak_one_rank CONFIG.toml METRICS.jsonl REPLICAS\n");
    return 2;
  }
  try {
    set_threads(1);
    TrainConfig config;
    ConfigTable table = bind(config);
    load_toml_file(table, argv[1]);
    resolve(config);
    const int replicas = std::stoi(argv[3]);
    const auto steps = sherd::testing::steps_of_run(argv[2], replicas);
    const double most = sherd::testing::difference_from_one_rank(
        config, steps, nn::count_data_ranks(config.plan.mesh.over(replicas)), replicas);
    fmt::print("{} {:.3g}\n", steps.size(), most);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_one_rank: {}\n", error.what());
    return 1;
  }
}
