#include "tests/support/emulated_nccl/pump.h"

#include <chrono>
#include <deque>
#include <thread>

namespace sherd::cuda::nccl::fake {

namespace {

constexpr auto kBetween = std::chrono::microseconds(50);

struct Pump {
  std::deque<std::shared_ptr<emulated::Op>> items;
  bool runs = false;
};
Pump& the_pump() {
  static auto* made = new Pump;
  return *made;
}

// Ends when there is nothing to do, so that none is left when the process ends well.
void run(emulated::Gpu& gpu) {
  for (;;) {
    {
      const std::lock_guard guard(gpu.lock);
      Pump& pump = the_pump();
      while (!pump.items.empty() && pump.items.front()->done) pump.items.pop_front();
      if (pump.items.empty()) {
        pump.runs = false;
        return;
      }
      for (const auto& item : pump.items)
        if (!item->done) gpu.advance(item);
    }
    std::this_thread::sleep_for(kBetween);
  }
}

}  // namespace

void pump(emulated::Gpu& gpu, std::shared_ptr<emulated::Op> item) {
  Pump& pump = the_pump();
  pump.items.push_back(std::move(item));
  if (pump.runs) return;
  pump.runs = true;
  std::thread(run, std::ref(gpu)).detach();
}

}  // namespace sherd::cuda::nccl::fake
