// `--child fma`: a request is "f32 THREADS" or "bf16 THREADS"; the answer, seconds for 1e9 floating-point operations.
#include <sstream>

#include "runtime/tensor/error.h"
#include "tools/bench/child.h"
#include "tools/bench/fma_peak.h"

namespace sherd::bench {

int run_fma_child(std::span<const std::string_view> args) {
  check(args.empty(), "the child fma takes no flags");
  serve({{"peer", "FMA loop"}}, [](const std::string& request) -> nlohmann::json {
    std::istringstream words(request);
    std::string kind;
    int threads = 0;
    words >> kind >> threads;
    check((kind == "f32" || kind == "bf16") && threads >= 1, "fma: \"{}\" is not f32|bf16 THREADS", request);
    std::vector<double> samples;
    for (int i = 0; i < 3; ++i)
      samples.push_back(seconds_per_gigaflop(kind == "bf16" ? PeakKind::bf16 : PeakKind::f32, threads));
    return {{"seconds", samples}};
  });
  return 0;
}

}  // namespace sherd::bench
