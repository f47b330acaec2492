#include "tools/train/skipped_batches.h"

#include <charconv>

#include <fmt/ranges.h>

#include "runtime/tensor/error.h"

namespace sherd {

SkippedBatches::SkippedBatches(std::string_view text, const std::string& source) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    std::int64_t batch = -1;
    const auto [next, error] = std::from_chars(at, end, batch);
    const bool is_last = next == end;
    check(error == std::errc() && batch >= 0 && (is_last || (*next == ',' && next + 1 != end)),
          "{}: skipped batches are numbers with commas between them, not \"{}\"", source, text);
    batches_.insert(batch);
    at = is_last ? end : next + 1;
  }
}

std::int64_t SkippedBatches::batch_of(std::int64_t step) const {
  std::int64_t batch = step;
  for (const std::int64_t skipped : batches_)
    if (skipped <= batch) ++batch;
  return batch;
}

std::string SkippedBatches::text() const { return fmt::format("{}", fmt::join(batches_, ",")); }

}  // namespace sherd
