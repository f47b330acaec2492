#include "tools/train/run_data.h"

#include <algorithm>
#include <fstream>
#include <span>
#include <vector>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/tensor/error.h"
#include "tools/train/run_text.h"

namespace sherd::train {

namespace {

/// What no two hosts have in common; a random one where the system does not tell.
std::string host_identity() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? random_hex(16) : id;
}

}  // namespace

void RunData::agree(ProcessGroup& group, const std::string& path) {
  const TextFiles& files = tokens_->files();
  std::string seen;
  together(group, [&] { seen = fmt::format("{} {}", host_identity(), files.identity()); });
  const std::vector<std::string> all_seen = gather_text(group, seen);
  const auto first = static_cast<int>(std::ranges::find(all_seen, seen) - all_seen.begin());
  ContentHash hash;
  together(group, [&] {
    if (first == group.rank()) hash = files.content_hash();
  });
  content_ = gather_text(group, hash.to_text())[static_cast<std::size_t>(first)];
  compare(group, path);
  if (hash.is_sampled() && group.rank() == 0)
    say_on_stderr(
        fmt::format("the data at {} has {} bytes: {} of them, evenly spread, stand for its content when "
                    "ranks and resumes are compared",
                    path, hash.all_bytes, hash.hashed_bytes));
}

void RunData::compare(ProcessGroup& group, const std::string& path) const {
  sherd::agree(group,
               Facts{{"the hash of names and sizes", std::to_string(tokens_->files().fingerprint())},
                     {"the hash of the content", content_}},
               {fmt::format("ranks see different data at {}", path), "all ranks need the same files"});
}

void RunData::note(ckpt::Manifest& manifest) const {
  manifest.vocabulary = tokens_->vocabulary().to_text();
  manifest.state["data"] = std::to_string(tokens_->files().fingerprint());
  manifest.state["data_content"] = content_;
}

// The same on all ranks, which have agreed on the data.
void RunData::check_is_of(const ckpt::Manifest& saved, const std::string& path, const std::string& resume) const {
  const std::string remedy = fmt::format(
      "pass the data of the checkpoint by --data PATH, or begin a new run on this one by --init-from {}", resume);
  check(std::to_string(tokens_->files().fingerprint()) == saved.state_value<std::string>("data"),
        "resume from {}: the data at {} is not what the checkpoint was trained on: names or sizes of the files differ; "
        "{}",
        resume, path, remedy);
  if (!saved.state.contains("data_content")) return;  // of a program that did not look into the files
  check(content_ == saved.state_value<std::string>("data_content"),
        "resume from {}: the data at {} is not what the checkpoint was trained on: names and sizes are equal, the "
        "content is not; {}",
        resume, path, remedy);
}

std::pair<Tensor, Tensor> RunData::training_batch(std::uint64_t seed, std::int64_t batch, const BatchRows& rows,
                                                  std::int64_t sequence) const {
  return read_windows(rows.count, sequence, [&](std::int64_t i, std::span<std::int32_t> window) {
    tokens_->training_window(seed, batch, rows.of_batch(i), window);
  });
}

}  // namespace sherd::train
