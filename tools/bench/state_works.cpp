// What a child does with the state of a training that lies in files.
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "nn/checkpoint/format/atomic_file.h"
#include "nn/checkpoint/save/async_saver.h"
#include "runtime/autograd/autograd.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "tools/bench/child.h"
#include "tools/bench/contest.h"
#include "tools/bench/training.h"

namespace sherd::bench {

namespace {

namespace fs = std::filesystem;

// `save [--folder DIR] [--tensors N]`: a gibibyte of state of one rank, on disk and back. Asked for
//   plain   its bytes written to one file, with a checksum of each MiB, and synced: what a save cannot be faster than
//   sync    save_checkpoint
//   load    open and load, each block checked; pages are in the system's cache, as after any save
//   async   a save beside a step that changes all of the state at once: seconds until the step may write, which are
//           start_seconds and copy_seconds of copied_bytes; all_seconds until it is committed
//   copy    its bytes copied in memory by one thread
//   beside  steps of products that change all of the state: alone_seconds, the median without a save; extra_seconds,
//           what all steps beside one save take more than so many alone, its start and copies included
constexpr std::int64_t kTensorBytes = std::int64_t{64} << 20;

class SaveSide {
 public:
  SaveSide(const std::string& folder, std::int64_t tensors)
      : folder_((fs::path(folder) / fmt::format("sherd-bench-save-{}", ::getpid())).string()), saver_(*group_) {
    for (const std::int64_t i : up_to(tensors)) {
      slots_.push_back(std::make_unique<Slot>(fmt::format("w{:03}", i)));
      slots_.back()->set(full({kTensorBytes / 4}, static_cast<double>(i + 1)));
      state_.push_back({slots_.back()->name(), "param", slots_.back().get()});
    }
    saver_.reserve(state_);
    std::memset(copy_.data(), 1, copy_.size());
  }
  ~SaveSide() {
    saver_.finish();
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  nlohmann::json answer(const std::string& kind) {
    asked(kind, "plain|sync|load|async|copy|beside");
    if (kind == "async") return beside_a_change();
    if (kind == "beside") return beside_steps();
    if (kind == "load" && ckpt::list_saves(folder_).empty()) save();
    const auto work = kind == "plain"  ? &SaveSide::write_plain
                      : kind == "sync" ? &SaveSide::save
                      : kind == "load" ? &SaveSide::load
                                       : &SaveSide::copy;
    return {{"seconds", {seconds_of([&] { (this->*work)(); })}}};
  }

 private:
  static constexpr ckpt::Retention kOne{.keep = 1};

  ckpt::Manifest next() {
    ckpt::Manifest manifest;
    manifest.step = ++step_;
    return manifest;
  }
  std::span<const std::byte> bytes_of(const Slot& slot) const {
    const Tensor& value = slot.value();
    return {static_cast<const std::byte*>(value.raw()), static_cast<std::size_t>(value.bytes())};
  }
  void save() { nn::save_checkpoint(folder_, next(), state_, *group_, kOne); }
  void load() { nn::load_checkpoint(ckpt::CheckpointReader(folder_), state_); }
  void write_plain() {
    fs::create_directories(folder_);
    ckpt::BlockHasher hasher;
    ckpt::AtomicFile file((fs::path(folder_) / "plain").string(),
                          kTensorBytes * static_cast<std::int64_t>(slots_.size()), &hasher);
    for (const auto& slot : slots_) file.write(bytes_of(*slot));
    file.commit();
    (void)hasher.sums();
  }
  void copy() {
    for (const auto& slot : slots_) std::memcpy(copy_.data(), bytes_of(*slot).data(), copy_.size());
  }
  nlohmann::json beside_a_change() {
    const nn::AsyncSaver::Counts before = saver_.counts();
    double start = 0, copy = 0;
    std::int64_t bytes = 0;
    const double all = seconds_of([&] {
      start = seconds_of([&] { saver_.start(folder_, next(), state_, kOne); });
      for (const auto& slot : slots_) slot->value().storage()->wait_to_write();
      copy = saver_.counts().copy_seconds - before.copy_seconds;
      bytes = saver_.counts().copied_bytes - before.copied_bytes;
      saver_.finish();
    });
    return {{"seconds", {start + copy}},
            {"start_seconds", start},
            {"copy_seconds", copy},
            {"copied_bytes", bytes},
            {"all_seconds", all}};
  }
  nlohmann::json beside_steps() {
    const Tensor a = full({512, 512}, 0.5), b = full({512, 512}, 0.25);
    const auto step = [&] {
      return seconds_of([&] {
        for (int i = 0; i < 64; ++i) matmul(a, b);
        for (const auto& slot : slots_) fill_into(slot->value(), static_cast<double>(step_));
      });
    };
    std::vector<double> alone = samples_of(10, step), beside;
    double all = seconds_of([&] { saver_.start(folder_, next(), state_, kOne); });
    while (saver_.is_in_flight()) {
      beside.push_back(step());
      all += beside.back() + seconds_of([&] { saver_.poll(); });
    }
    return {{"seconds", beside},
            {"alone_seconds", median(alone)},
            {"extra_seconds", all - static_cast<double>(beside.size()) * median(alone)}};
  }

  const std::string folder_;
  const std::shared_ptr<ProcessGroup> group_ = make_single_group();
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<nn::StateEntry> state_;
  std::vector<std::byte> copy_ = std::vector<std::byte>(static_cast<std::size_t>(kTensorBytes));
  nn::AsyncSaver saver_;
  std::int64_t step_ = 0;
};

Ready begin_save(std::span<const std::string_view> args) {
  std::string folder = fs::temp_directory_path().string();
  std::int64_t tensors = 16;
  take_flags(args, {{"folder", &folder}, {"tensors", &tensors}});
  set_threads(1);
  const auto side = std::make_shared<SaveSide>(folder, tensors);
  return {sherd_greeting(), [side](const std::string& request) {
            const GradMode off(false);
            return side->answer(request);
          }};
}

// `offload [--clips true]`: a step whose optimizer state is in a file, beside the same step in memory, in one process.
// Asked for a speed of the file, as a multiple of the rate that moves in one step what a step moves: "2". The answer
// holds seconds of steps; compute_seconds, the median of steps in memory; bytes that a step moves, and
// transfer_seconds, what they take alone at that rate. With clipping updates come after backward.
class OffloadSide {
 public:
  OffloadSide(const BenchRow& row, bool clips, const std::string& offload)
      : batch_(random_batch(row, 0)), step_(step_of(row, clips, offload)) {
    for (int i = 0; i < 3; ++i) seconds();
  }
  double seconds() {
    return seconds_of([&] { step_.update(batch_.tokens, batch_.targets).loss.item<float>(); });
  }
  std::vector<double> samples(std::int64_t steps) {
    return samples_of(steps, [&] { return seconds(); });
  }
  const nn::OffloadedState* state() { return step_.optimizer().offloaded(); }

 private:
  static TrainStep step_of(const BenchRow& row, bool clips, const std::string& offload) {
    TrainConfig config = train_config(row.model(), row.plan, 1);
    config.plan.offload = offload;
    if (clips) config.optimizer.clip = 1e9;
    return TrainStep(config, nn::JobMesh(config.plan.mesh, make_single_group()), row.model().vocabulary,
                     {.metrics = clips});
  }
  BenchRow::Batch batch_;
  TrainStep step_;
};

Ready begin_offload(std::span<const std::string_view> args) {
  bool clips = false;
  const BenchRow row = take_row(args, {.steps = 8}, {{"clips", &clips}});
  const auto held = std::make_shared<OffloadSide>(row, clips, "none");
  const auto offloaded = std::make_shared<OffloadSide>(row, clips, "optimizer:" + fs::temp_directory_path().string());
  return {
      sherd_greeting(), [=, steps = row.steps](const std::string& request) -> nlohmann::json {
        OffloadFile& file = *offloaded->state()->store().file();
        const double compute = median(held->samples(steps));
        const double bytes = 2.0 * static_cast<double>(offloaded->state()->store().bytes());
        const double rate = std::stod(request) * bytes / compute;
        file.set_rate(rate);
        std::vector<double> seconds = offloaded->samples(steps);
        seconds.erase(seconds.begin());  // the rate was another one when it began
        file.set_rate(0);
        return {
            {"seconds", seconds}, {"compute_seconds", compute}, {"bytes", bytes}, {"transfer_seconds", bytes / rate}};
      }};
}

constexpr Works::value_type kStateWorks[] = {{"save", begin_save}, {"offload", begin_offload}};

}  // namespace

Works state_works() { return kStateWorks; }

}  // namespace sherd::bench
