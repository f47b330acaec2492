#include "compile/run/same_program.h"

#include <algorithm>
#include <string>
#include <vector>

#include "compile/ir/text/print.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/purpose.h"

namespace sherd {

namespace {

using Hashes = std::vector<std::int64_t>;

// counts[r] numbers of every rank, in rank order.
Hashes gather(ProcessGroup& group, const Hashes& own, const std::vector<std::int64_t>& counts) {
  std::int64_t before = 0, all = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (static_cast<int>(r) < group.rank()) before += counts[r];
    all += counts[r];
  }
  Hashes result(static_cast<std::size_t>(all));
  std::copy(own.begin(), own.end(), result.begin() + before);
  group.host().all_gather({in_place(result.data(), DType::i64, counts)});
  return result;
}

// The hash most ranks have; of equally frequent ones the lowest rank's.
std::int64_t majority(const Hashes& programs) {
  return *std::max_element(programs.begin(), programs.end(), [&](std::int64_t a, std::int64_t b) {
    return std::count(programs.begin(), programs.end(), a) < std::count(programs.begin(), programs.end(), b);
  });
}

std::string rank_list(const Hashes& programs, std::int64_t hash, bool equal) {
  std::string text;
  for (std::size_t r = 0; r < programs.size(); ++r)
    if ((programs[r] == hash) == equal) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

}  // namespace

bool check_same_program(const Program* program, ProcessGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (ranks == 1) return program != nullptr;
  const PurposeScope purpose("compile");
  const std::vector<std::string> text = program ? lines(*program, {.rank_neutral = true}) : std::vector<std::string>{};
  Hashes own;
  std::string all_lines;
  for (const std::string& line : text) {
    own.push_back(static_cast<std::int64_t>(hash_text(line)));
    all_lines += line + '\n';
  }
  const Hashes summary{static_cast<std::int64_t>(hash_text(all_lines)), static_cast<std::int64_t>(own.size())};
  const Hashes summaries = gather(group, summary, std::vector<std::int64_t>(ranks, 2));
  Hashes programs;
  std::vector<std::int64_t> counts;
  for (std::size_t r = 0; r < ranks; ++r) {
    programs.push_back(summaries[2 * r]);
    counts.push_back(summaries[2 * r + 1]);
  }
  if (std::count(counts.begin(), counts.end(), 0) > 0) return false;  // the text of a graph has a line at least
  if (std::count(programs.begin(), programs.end(), programs[0]) == static_cast<std::ptrdiff_t>(ranks)) return true;

  // Every rank is here, because every rank saw the same summaries.
  const Hashes all = gather(group, own, counts);
  const std::int64_t shortest = *std::min_element(counts.begin(), counts.end());
  std::int64_t line = 0;
  for (bool equal = true; line < shortest; line += equal ? 1 : 0) {
    for (std::int64_t r = 0, start = 0; r < static_cast<std::int64_t>(ranks);
         start += counts[static_cast<std::size_t>(r)], ++r)
      equal = equal && all[static_cast<std::size_t>(start + line)] == all[static_cast<std::size_t>(line)];
    if (!equal) break;
  }
  const std::int64_t usual = majority(programs);
  Error error(fmt::format(
      "the captured step is not the same program on all ranks: rank {} differs from rank {}, first in line {} of the "
      "graph. All ranks must call the same ops in the same order; a step whose ranks agree in collectives alone is "
      "compiled with CompileOptions{{.group = nullptr}}, and is not compared",
      rank_list(programs, usual, false), rank_list(programs, usual, true), line + 1));
  error.add("here", line < static_cast<std::int64_t>(text.size()) ? text[static_cast<std::size_t>(line)]
                                                                  : "the graph has ended");
  error.add("rank", std::to_string(group.rank()));
  throw error;
}

}  // namespace sherd
