#pragma once
// Ghosts and simulations that do not know each other, on all CPUs.
#include <cstddef>
#include <functional>

namespace sherd::plan {

/// Calls work(0) .. work(count - 1), in any order, on as many threads as there are CPUs; the calling thread is one of
/// them. What each makes is its own, so that results do not depend on the number of threads. Throws what the lowest
/// number has thrown, once all are through.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace sherd::plan
