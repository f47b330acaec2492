#include "tools/plan/on_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "runtime/os/allowed_cpus.h"

namespace sherd::plan {

void on_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next = 0;
  const auto run = [&] {
    for (std::size_t i; (i = next++) < count;) {
      try {
        work(i);
      } catch (...) { errors[i] = std::current_exception(); }
    }
  };
  {
    std::vector<std::jthread> others;
    const std::size_t threads = std::min(count, static_cast<std::size_t>(allowed_cpus().count()));
    while (others.size() + 1 < threads) others.emplace_back(run);
    run();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace sherd::plan
