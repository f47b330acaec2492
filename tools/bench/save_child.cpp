// `--child save`: a gibibyte of state of one rank, on disk and back. A request is one of
//   plain   its bytes written to one file, with a checksum of each MiB, and synced: what a save cannot be faster than
//   sync    save_checkpoint
//   load    open and load, each block checked; pages are in the system's cache, as after any save
//   async   a save beside a step that changes all of the state at once: seconds until the step may write, which are
//           start_seconds and copy_seconds of copied_bytes; all_seconds until it is committed
//   copy    its bytes copied in memory by one thread
//   beside  steps of products that change all of the state: alone_seconds, the median without a save; extra_seconds,
//           what all steps beside one save take more than so many alone, its start and copies included
// and how often. The answer has "seconds".
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>

#include <unistd.h>

#include "nn/checkpoint/format/atomic_file.h"
#include "nn/checkpoint/save/async_saver.h"
#include "runtime/autograd/autograd.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/contest.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTensorBytes = std::int64_t{64} << 20;

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class SaveSide {
 public:
  SaveSide(const std::string& folder, std::int64_t tensors)
      : folder_((fs::path(folder) / fmt::format("sherd-bench-save-{}", ::getpid())).string()), saver_(*group_) {
    for (std::int64_t i = 0; i < tensors; ++i) {
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
  SaveSide(const SaveSide&) = delete;
  SaveSide& operator=(const SaveSide&) = delete;

  nlohmann::json answer(const std::string& kind) {
    if (kind == "plain") return {{"seconds", {seconds_of([&] { write_plain(); })}}};
    if (kind == "sync")
      return {{"seconds", {seconds_of([&] { nn::save_checkpoint(folder_, next(), state_, *group_, kOne); })}}};
    if (kind == "load") return load();
    if (kind == "async") return beside_a_change();
    if (kind == "copy") return {{"seconds", {seconds_of([&] { copy(); })}}};
    if (kind == "beside") return beside_steps();
    fail("a request is plain, sync, load, async, copy or beside, got \"{}\"", kind);
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
  void write_plain() const {
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
  nlohmann::json load() {
    if (ckpt::list_saves(folder_).empty()) nn::save_checkpoint(folder_, next(), state_, *group_, kOne);
    return {{"seconds", {seconds_of([&] { nn::load_checkpoint(ckpt::CheckpointReader(folder_), state_); })}}};
  }
  nlohmann::json beside_a_change() {
    const auto begin = std::chrono::steady_clock::now();
    const ckpt::SnapshotCost before = saver_.counts().cost;
    const double start = seconds_of([&] { saver_.start(folder_, next(), state_, kOne); });
    for (const auto& slot : slots_) slot->value().storage()->wait_to_write();
    const double copy = saver_.counts().cost.seconds - before.seconds;
    const std::int64_t bytes = saver_.counts().cost.copied_bytes - before.copied_bytes;
    saver_.finish();
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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
    std::vector<double> alone, beside;
    for (int i = 0; i < 10; ++i) alone.push_back(step());
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

}  // namespace

int run_save_child(std::span<const std::string_view> args) {
  std::string folder = fs::temp_directory_path().string();
  std::int64_t tensors = 16;
  ConfigTable table;
  table.add("folder", &folder, "where files are written");
  table.add("tensors", &tensors, "of 64 MiB");
  apply_flags(table, parse_command_line(table, args));
  set_threads(1);
  const GradMode off(false);
  SaveSide side(folder, tensors);
  serve({{"peer", "sherd"}}, [&](const std::string& request) { return side.answer(request); });
  return 0;
}

}  // namespace sherd::bench
