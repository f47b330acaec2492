#pragma once
// Work of a queue that is held back, without a look at the clock.
#include <functional>
#include <future>
#include <utility>

namespace sherd::testing {

/// Work that does not end before open() is called.
class Gate {
 public:
  std::function<void()> then(std::function<void()> run = [] {}) {
    return [this, run = std::move(run)] {
      entered_.set_value();
      opened_.get_future().wait();
      run();
    };
  }
  void await_entered() { entered_.get_future().wait(); }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> entered_, opened_;
};

}  // namespace sherd::testing
