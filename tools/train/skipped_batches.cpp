#include "tools/train/skipped_batches.h"

#include <ranges>

#include <fmt/ranges.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd::train {

std::optional<std::vector<std::int64_t>> numbers_from_text(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (const auto part : std::views::split(text, ',')) {
    const auto number = number_of<std::int64_t>(std::string_view(part.begin(), part.end()));
    if (!number || *number < 0) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

SkippedBatches::SkippedBatches(std::string_view text, const std::string& source) {
  const auto numbers = numbers_from_text(text);
  check(numbers.has_value(), "{}: skipped batches are numbers with commas between them, not \"{}\"", source, text);
  batches_ = {numbers->begin(), numbers->end()};
}

std::int64_t SkippedBatches::batch_of(std::int64_t step) const {
  std::int64_t batch = step;
  for (const std::int64_t skipped : batches_)
    if (skipped <= batch) ++batch;
  return batch;
}

std::string SkippedBatches::text() const { return fmt::format("{}", fmt::join(batches_, ",")); }

}  // namespace sherd::train
