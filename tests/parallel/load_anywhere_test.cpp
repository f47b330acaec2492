// Training state that was saved in one layout and is loaded in another, for all layouts that 1 to 4 ranks have. Oracle:
// every element is a function of its name and place. tests/soak/layouts.cpp counts the bytes that such loads read.
#include <gtest/gtest.h>

#include <list>

#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/numbered.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// full_shard over 1 to 4 ranks; copies of whole models and of shards; tensor parallelism over 2 to 4, and over 2 of 4.
constexpr Grid3 kLayouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 4, 1}, {2, 1, 1}, {3, 1, 1},
                              {4, 1, 1}, {2, 2, 1}, {1, 1, 2}, {1, 1, 3}, {1, 1, 4}, {1, 2, 2}};

std::string name_of(const Grid3& grid) {
  return fmt::format("replicate={},dp={},tp={}", grid.replicas, grid.dp, grid.tp);
}

/// A net of one block with AdamW, whose sizes no number of ranks divides. Its `down` [250, 1051] is larger than a block
/// of a file, and tensor parallelism cuts its columns.
class LoadedNet {
 public:
  LoadedNet(const Group& group, const Grid3& grid) : root_(grid.mesh(group)), net_(250, 1051, 1) {
    if (grid.tp > 1) nn::parallelize(net_, root_["tp"], plan_of(false));
    const nn::UnitPolicy policy = nn::strategy(grid.replicas > 1 ? "hybrid_shard" : "full_shard");
    shard(net_, grid.data(root_), policy, policy);
    net_.materialize();
    optimizer_ = std::make_unique<nn::AdamW>(net_.parameters());
  }
  std::vector<nn::StateEntry> state() { return nn::training_state(net_, optimizer_.get()); }
  void fill() {
    each([](const std::string& name, const nn::StateEntry& entry, const ckpt::Box& box, const Tensor& local) {
      fill_numbered(name, nn::state_shape(entry), box, local);
    });
  }
  void clear() {
    each(
        [](const std::string&, const nn::StateEntry&, const ckpt::Box&, const Tensor& local) { fill_into(local, -1); });
  }
  /// Names of tensors with wrong elements.
  std::string wrong() {
    std::string names;
    each([&](const std::string& name, const nn::StateEntry& entry, const ckpt::Box& box, const Tensor& local) {
      if (const std::int64_t count = count_wrong(name, nn::state_shape(entry), box, local); count > 0)
        names += fmt::format(" {} ({} of {})", name, count, local.numel());
    });
    return names;
  }

 private:
  template <class Visit>
  void each(const Visit& visit) {
    const GradMode off(false);
    for (const nn::StateEntry& entry : state()) {
      if (entry.usually) continue;  // shares the optimizer's count of steps
      const Tensor& value = nn::state_tensor(entry);
      visit(entry.kind + "/" + entry.name, entry, ckpt::local_box(value), value.local().detach());
    }
  }

  DeviceMesh root_;
  ResidualNet net_;
  std::unique_ptr<nn::AdamW> optimizer_;
};

TEST(FullyShard, F102_F160_StateOfAnyLayoutLoadsInAnyOther) {
  std::list<TempDir> saves;
  for (const Grid3& from : kLayouts) {
    saves.emplace_back();
    run_ranks(from.ranks(), [&](const Group& group) {
      LoadedNet saved(group, from);
      saved.fill();
      nn::save_checkpoint(saves.back().path(), ckpt::Manifest{}, saved.state(), *group);
    });
  }
  for (const Grid3& to : kLayouts)
    run_ranks(to.ranks(), [&](const Group& group) {
      LoadedNet loaded(group, to);
      auto save = saves.begin();
      for (const Grid3& from : kLayouts) {
        loaded.clear();
        nn::load_checkpoint(ckpt::CheckpointReader((save++)->path()), loaded.state());
        EXPECT_EQ(loaded.wrong(), "") << "rank " << group->rank() << " of " << name_of(to) << " from " << name_of(from);
      }
    });
}

}  // namespace
}  // namespace sherd::testing
