// Work that can do without bytes that it reads: who writes them asks it, and does not wait.
#include "runtime/memory/let_go.h"

#include <gtest/gtest.h>

#include <atomic>

#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/gate.h"

namespace sherd::testing {
namespace {

HostQueue& save_queue(std::string_view name = "save") {
  return static_cast<HostQueue&>(RankContext::current().queue(name));
}

Tensor four_zeros() { return zeros({4}); }

float* floats_of(const Tensor& t) { return reinterpret_cast<float*>(t.storage()->address()); }

void submit(HostQueue& to, std::vector<Loan> loans, std::function<void()> run) {
  to.submit({.name = "work", .run = std::move(run), .loans = loans});
}

// A writer does not wait for work that lets go, on the rank's thread or on another queue; each storage is asked for
// once.
TEST(LetGo, WorkThatLetsGoOfWhatItReadsIsNotWaitedFor) {
  RankScope scope;
  const Tensor x = four_zeros(), y = four_zeros(), z = four_zeros();
  std::vector<std::uint64_t> let_go;
  Gate gate;
  const std::vector<Loan> loans{{x.storage(), false}, {y.storage(), false}, {z.storage(), false}};
  const Event event =
      save_queue().submit({.name = "work", .run = gate.then(), .loans = loans}, [&](const Storage& storage) {
        let_go.push_back(storage.id());
        return true;
      });
  gate.await_entered();
  (void)x.data<float>();
  EXPECT_TRUE(let_go.empty()) << "readers take nothing away";
  fill_into(x, 1);
  fill_into(x, 2);
  EXPECT_EQ(let_go, (std::vector{x.storage()->id()}));
  submit(save_queue("reduce"), {{y.storage(), true}}, [p = floats_of(y)] { p[0] = 4; });
  EXPECT_EQ(y.data<float>()[0], 4);
  EXPECT_EQ(let_go, (std::vector{x.storage()->id(), y.storage()->id()}));
  EXPECT_FALSE(event.is_reached());
  gate.open();
  event.wait();
  fill_into(z, 3);
  EXPECT_EQ(let_go.size(), 2u) << "what is done is not asked";
}

// An earlier item of the queue reads as well, and cannot do without: it is waited for.
TEST(LetGo, AnEarlierReaderThatDoesNotLetGoIsWaitedFor) {
  RankScope scope;
  const Tensor x = four_zeros();
  std::atomic<bool> is_read = false;
  Gate gate;
  submit(save_queue(), {{x.storage(), false}}, gate.then([&] { is_read = true; }));
  const std::vector<Loan> loans{{x.storage(), false}};
  save_queue().submit({.name = "work", .run = [] {}, .loans = loans}, [](const Storage&) { return true; });
  gate.await_entered();
  auto opener = std::async(std::launch::async, [&] { gate.open(); });
  fill_into(x, 1);
  EXPECT_TRUE(is_read);
}

}  // namespace
}  // namespace sherd::testing
