// Loads saves of every layout that 1 to 4 ranks have in every other one: the bits are those that were saved, and each
// rank reads its shards and little more. A row-parallel and a column-parallel matrix stand for a model.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "dtensor/spec.h"
#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/training_state.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/numbered.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr std::int64_t kColumns = 1031;  // f32: a row is no part of a block

struct Options {
  std::int64_t mib = 256;  // of a matrix
  int every = 1;           // one in so many pairs of layouts
};

/// Ranks of replicas, of shards of the data, and of tensor parallelism, slowest first.
struct Layout {
  const char* strategy;
  int replicas, dp, tp;
  int ranks() const { return replicas * dp * tp; }
  std::string name() const { return fmt::format("{} {}x{}x{}", strategy, replicas, dp, tp); }
};
constexpr Layout kLayouts[] = {{"full_shard", 1, 1, 1}, {"full_shard", 1, 2, 1}, {"full_shard", 1, 3, 1},
                               {"full_shard", 1, 4, 1}, {"hsdp", 2, 1, 1},       {"hsdp", 3, 1, 1},
                               {"hsdp", 4, 1, 1},       {"hsdp", 2, 2, 1},       {"tp", 1, 1, 2},
                               {"tp", 1, 1, 3},         {"tp", 1, 1, 4},         {"tp", 1, 2, 2}};

/// Two matrices in the layouts that fully_shard gives to those of a column-parallel and a row-parallel linear.
class Weights {
 public:
  Weights(const Group& group, const Layout& layout, std::int64_t mib)
      : group_(group),
        mesh_(group, {{"replicate", layout.replicas}, {"dp", layout.dp}, {"tp", layout.tp}}),
        shape_{(mib << 20) / (4 * kColumns), kColumns} {
    colwise_.set(made(Spec::of(mesh_, {Replicate(), Shard(0), Shard(0)}, {2, 1})));
    rowwise_.set(made(Spec::of(mesh_, {Replicate(), Shard(0), Shard(1)})));
  }
  void save(const std::string& dir) {
    for (const nn::StateEntry& entry : state())
      fill_numbered(entry.name, shape_, ckpt::local_box(entry.slot->value()), entry.slot->value().local());
    nn::save_checkpoint(dir, ckpt::Manifest{}, state(), *group_);
  }
  std::vector<nn::StateEntry> state() { return {{"colwise", "param", &colwise_}, {"rowwise", "param", &rowwise_}}; }
  std::int64_t bytes() const { return colwise_.value().local().bytes() + rowwise_.value().local().bytes(); }
  std::int64_t count_wrong() {
    std::int64_t wrong = 0;
    for (const nn::StateEntry& entry : state())
      wrong +=
          testing::count_wrong(entry.name, shape_, ckpt::local_box(entry.slot->value()), entry.slot->value().local());
    return wrong;
  }

 private:
  Tensor made(const Spec* spec) const {
    Tensor local = Tensor::empty(spec->local_shape(shape_), DType::f32);
    fill_into(local, -1);
    return Tensor::distributed(shape_, spec, std::move(local));
  }

  Group group_;
  DeviceMesh mesh_;
  Shape shape_;
  Slot colwise_{"colwise"}, rowwise_{"rowwise"};
};

struct Found {
  std::atomic<std::int64_t> wrong = 0;
  std::atomic<double> most_read = 0;  // bytes, as a part of the shards' bytes
};

void load(const std::string& dir, const Layout& layout, const Options& options, Found& found) {
  run_ranks(layout.ranks(), [&](const Group& group) {
    Weights weights(group, layout, options.mib);
    const ckpt::CheckpointReader reader(dir);
    nn::load_checkpoint(reader, weights.state());
    found.wrong += weights.count_wrong();
    const double read = static_cast<double>(reader.bytes_read()) / static_cast<double>(weights.bytes());
    for (double most = found.most_read; read > most && !found.most_read.compare_exchange_weak(most, read);) continue;
  });
}

int soak(const Options& options) {
  // A shard of a matrix lies in a few pieces, and its ends in each lie in blocks that are read whole.
  const double allowed = options.mib >= 256 ? 1.05 : 1.05 + 12.0 / static_cast<double>(options.mib);
  int pairs = 0, failed = 0, number = 0;
  double most = 0;
  for (const Layout& from : kLayouts) {
    const TempDir dir;
    bool is_saved = false;
    for (const Layout& to : kLayouts) {
      if (number++ % options.every != 0) continue;
      if (!std::exchange(is_saved, true))
        run_ranks(from.ranks(), [&](const Group& group) { Weights(group, from, options.mib).save(dir.path()); });
      Found found;
      load(dir.path(), to, options, found);
      ++pairs;
      most = std::max(most, found.most_read.load());
      if (found.wrong == 0 && found.most_read <= allowed) continue;
      ++failed;
      fmt::print("{} -> {}: {} elements are wrong, a rank reads {:.3f} times its shards\n", from.name(), to.name(),
                 found.wrong.load(), found.most_read.load());
    }
  }
  fmt::print("soak: {} of {} pairs of layouts failed; no rank reads more than {:.3f} times its shards of {} MiB\n",
             failed, pairs, most, 2 * options.mib);
  return failed == 0 ? 0 : 1;
}

Options parse(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view flag = arguments[i];
    check(i + 1 < arguments.size(), "{} needs a value", flag);
    const int value = std::atoi(arguments[i + 1]);
    check(value > 0, "{} must be a positive number, got {}", flag, arguments[i + 1]);
    if (flag == "--mib") options.mib = value;
    else if (flag == "--every") options.every = value;
    else fail("unknown flag '{}'; there are --mib N and --every N", flag);
  }
  return options;
}

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  using namespace sherd::testing;
  try {
    return soak(parse({argv + 1, static_cast<std::size_t>(argc - 1)}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_layouts: {}\n", error.what());
    return 2;
  }
}
