#include "runtime/comm/group/agree.h"

#include <numeric>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {
thread_local int exchanges = 0;  // that this thread is in

struct Agreement {
  Agreement() { ++exchanges; }
  ~Agreement() { --exchanges; }
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;
};
}  // namespace

bool comm::is_agreeing() { return exchanges > 0; }

std::vector<std::string> gather_text(ProcessGroup& any, std::string_view text) {
  const PurposeScope purpose("gather_text");
  check_fits_rank(any);
  const Agreement agreement;
  HostGroup& group = any.host();
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto self = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> sizes(ranks, 0), ones(ranks, 1);
  sizes[self] = static_cast<std::int64_t>(text.size());
  group.all_gather({in_place(sizes.data(), DType::i64, ones)});

  std::string all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})), '\0');
  const auto before = std::accumulate(sizes.begin(), sizes.begin() + group.rank(), std::int64_t{0});
  text.copy(all.data() + before, text.size());
  group.all_gather({in_place(all.data(), DType::u8, sizes)});

  std::vector<std::string> result;
  std::size_t at = 0;
  for (std::int64_t size : sizes) {
    result.push_back(all.substr(at, static_cast<std::size_t>(size)));
    at += static_cast<std::size_t>(size);
  }
  return result;
}

void together(ProcessGroup& group, const std::function<void()>& work) {
  const PurposeScope purpose("together");
  std::string failure;
  try {
    work();
  } catch (const std::exception& error) {
    failure = error.what();
    if (failure.empty()) failure = "unknown error";
  }
  const std::vector<std::string> failures = gather_text(group, failure);
  if (!failure.empty()) throw Error(failure);  // each failing rank shows its own reason
  for (std::size_t r = 0; r < failures.size(); ++r)
    if (!failures[r].empty()) throw Error(fmt::format("rank {}: {}", r, failures[r]));
}

}  // namespace sherd
