// Offloaded bytes: the file, and the rows that move them beside compute. Oracle: the bytes that were put there.
#include "runtime/op/copy/offload.h"

#include <gtest/gtest.h>

#include <dirent.h>

#include <cstring>
#include <numeric>

#include "runtime/exec/context.h"
#include "runtime/exec/hazards.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/near.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

Tensor counted(std::int64_t n, float from) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), from);
  return Tensor::from<float>(values, {n});
}

// Bytes of this process's memory that are of `what` ("RssFile", "RssAnon").
std::int64_t resident(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(what + ":")) return 1024 * std::stoll(line.substr(what.size() + 1));
  return -1;
}

TEST(OffloadFile, HoldsZerosThenWhatWasWrittenByAddressOrByPosition) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor home = store.allocate({1000}, DType::f32);
  EXPECT_TRUE(same_bits(home, zeros({1000})));
  copy_into(home, counted(1000, 3));
  std::vector<float> read(1000);
  store.file()->read(home.storage()->address(), std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read[999], 1002);
  read[0] = -1;
  store.file()->write(home.storage()->write(), std::as_bytes(std::span(read)));
  EXPECT_EQ(home.to_vector<float>()[0], -1);
}

TEST(OffloadFile, LeavesNothingBehindAndTakesNoMemory) {
  const TempDir dir;
  const std::int64_t account = RankContext::current().allocator().accounting().total(), before = resident("RssFile");
  OffloadStore store(Device::cpu(), dir.path());
  const std::int64_t n = 8 << 20;
  const Tensor home = store.allocate({n}, DType::f32);
  {
    std::vector<std::byte> chunk(1 << 20, std::byte{1});
    for (std::int64_t at = 0; at < home.bytes(); at += 1 << 20)
      store.file()->write(home.storage()->address() + at, chunk);
  }
  EXPECT_EQ(RankContext::current().allocator().accounting().total(), account);
  EXPECT_LT(resident("RssFile") - before, 4 << 20);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "the file has a name";
}

TEST(OffloadFile, ErrorsNameTheFolderAndWhatIsMissing) {
  const TempDir dir;
  expect_error([&] { OffloadStore(Device::cpu(), dir / "missing"); }, {"is not a folder", "missing"});
  expect_error([&] { OffloadStore(Device::cpu(), dir.write("file", "")); }, {"is not a folder"});
  expect_error([&] { OffloadStore(Device::cpu(), ""); }, {"name a folder"});
  expect_error([&] { OffloadStore(Device::cpu(), "/proc/self"); }, {"cannot make a file in the folder \"/proc/self\""});
  OffloadStore store(Device::cpu(), dir.path());
  const FileSizeLimit limit(2 << 20);
  const Tensor fits = store.allocate({256 << 10}, DType::f32);
  expect_error([&] { store.allocate({1 << 20}, DType::f32); },
               {"has no room for", "beside 1.05 MB that are offloaded", dir.path()});
  EXPECT_TRUE(same_bits(fits, zeros({256 << 10})));
}

TEST(Offload, FetchBringsHomesAndEvictTakesThemBack) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const std::vector<Tensor> homes{store.allocate({7}, DType::f32), store.allocate({2, 16}, DType::f32),
                                  store.allocate({0}, DType::f32), store.allocate({3}, DType::i64)};
  copy_into(homes[0], counted(7, 1));
  copy_into(homes[1], reshape(counted(32, 100), {2, 16}));
  for (int round = 0; round < 3; ++round) {
    const Tensor here = fetch(homes, {});
    EXPECT_EQ(here.numel(), 64 + 128 + 0 + 64);
    EXPECT_EQ(here.storage()->category(), MemoryCategory::optimizer);
    const std::vector<Tensor> parts = parts_of(here, homes);
    for (std::size_t i = 0; i < homes.size(); ++i) EXPECT_TRUE(same_bits(parts[i], homes[i])) << i;
    copy_into(parts[1], mul(parts[1], 2.0));
    evict(homes, here, {});
    EXPECT_TRUE(same_bits(homes[1], mul(reshape(counted(32, 100), {2, 16}), std::pow(2.0, round + 1)))) << round;
    EXPECT_TRUE(same_bits(homes[0], counted(7, 1)));
  }
}

// A fetch reads what the evict before it writes, though nobody waits in between; what they use is freed in bounds.
TEST(Offload, FetchesFollowEvictsAndFewAreInFlight) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor home[] = {store.allocate({1 << 16}, DType::f32)};
  HazardChecker checker;
  Accounting& memory = RankContext::current().allocator().accounting();
  const std::int64_t before = memory.current(MemoryCategory::optimizer);
  memory.reset_peaks();
  for (int i = 0; i < 20; ++i) {
    const Tensor here = fetch(home, {});
    const Tensor values = parts_of(here, home)[0];
    copy_into(values, add(values, 1.0));
    evict(home, here, {});
  }
  EXPECT_TRUE(same_bits(home[0], full({1 << 16}, 20.0)));
  EXPECT_LE(memory.peak(MemoryCategory::optimizer) - before, 3 * home[0].bytes());
}

// A gather takes what was fetched for what is at home, by its version; so does a second fetch to the same place.
TEST(Offload, ShardsAreOfTheVersionOfTheirHome) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor home = store.allocate({128}, DType::u8);
  const Tensor to = bytes_over(Storage::released(128, MemoryCategory::unsharded));
  for (int value = 0; value < 4; ++value) {
    if (value > 0) fill_into(home, value);
    else std::memset(home.storage()->address(), 7, 128);  // as checkpoints are loaded: no version
    const Tensor here = fetch_shards(home, {});
    EXPECT_EQ(here.storage()->category(), MemoryCategory::parameters);
    EXPECT_EQ(here.storage()->version(), home.storage()->version());
    EXPECT_TRUE(same_bits(here, home));
    fetch_into(home, to, {});
    EXPECT_EQ(to.storage()->version(), home.storage()->version());
    EXPECT_TRUE(same_bits(to, home));
    fetch_into(home, to, {});
    EXPECT_FALSE(to.storage()->is_lent()) << "it was current";
    to.storage()->release_data();
  }
}

TEST(Offload, AHomeIsKnownForAsLongAsItLives) {
  const TempDir dir;
  const auto store = OffloadStore::shared(Device::cpu(), dir.path(), 1 << 20);
  EXPECT_EQ(OffloadStore::shared(Device::cpu(), dir.path(), 1 << 20), store);
  EXPECT_NE(OffloadStore::shared(Device::cpu(), dir.path(), 1 << 21), store);
  const Tensor home = store->allocate({16}, DType::f32);
  ASSERT_NE(home_of(home), nullptr);
  EXPECT_EQ(home_of(home)->bytes_in_flight, 1 << 20);
  EXPECT_EQ(home_of(narrow(home, 0, 4, 4)), home_of(home));
  EXPECT_EQ(home_of(ones({3})), nullptr);
  EXPECT_EQ(home_of(Tensor()), nullptr);
}

TEST(OffloadFile, WhatIsGivenBackIsUsedAgainAndHoldsZeros) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor neighbour = store.allocate({16}, DType::f32);
  fill_into(neighbour, 5);
  for (int round = 0; round < 5; ++round) {
    const Tensor home = store.allocate({1000}, DType::f32), after = store.allocate({7}, DType::f32);
    EXPECT_TRUE(same_bits(home, zeros({1000}))) << round;
    EXPECT_TRUE(same_bits(after, zeros({7}))) << round;
    fill_into(home, 3);
    fill_into(after, 4);
  }
  EXPECT_TRUE(same_bits(neighbour, full({16}, 5.0)));
  EXPECT_EQ(store.file()->bytes(), 64 + 4032 + 28);
}

TEST(OffloadFile, WhatWasLookedAtLeavesMemory) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor home = store.allocate({4 << 20}, DType::f32);
  const auto mapped = [] { return resident("RssFile") + resident("RssShmem"); };
  const std::int64_t before = mapped();
  fill_into(home, 3);
  EXPECT_GT(mapped() - before, 12 << 20);
  leave_memory(home);
  EXPECT_LT(mapped() - before, 2 << 20);
  EXPECT_EQ(narrow(home, 0, 4'000'000, 1).item<float>(), 3);
}

// Homes that follow each other are one move where what goes there follows each other too: here 24 bytes of padding lie
// between, so they are two.
TEST(Offload, HomesThatFollowEachOtherLeaveOutThePadding) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor both = store.allocate({80}, DType::u8);
  const Tensor homes[] = {narrow(both, 0, 0, 40), narrow(both, 0, 40, 40)};
  const Tensor here = full({128}, 9, DType::u8);
  fill_into(narrow(here, 0, 0, 40), 1);
  fill_into(narrow(here, 0, 64, 40), 2);
  evict(homes, here, {});
  EXPECT_TRUE(same_bits(homes[0], full({40}, 1, DType::u8)));
  EXPECT_TRUE(same_bits(homes[1], full({40}, 2, DType::u8)));
  const Tensor again = fetch(homes, {});
  EXPECT_TRUE(same_bits(narrow(again, 0, 0, 40), homes[0]));
  EXPECT_TRUE(same_bits(narrow(again, 0, 64, 40), homes[1]));
}

TEST(Offload, HomesMayBeMemoryOfSomebodyElse) {
  std::vector<float> memory(100, 2);
  const Tensor home[] = {Tensor::make_dense(Storage::borrow(memory.data(), 400, {}), {100}, DType::f32, Device::cpu())};
  const Tensor here = fetch(home, {});
  copy_into(parts_of(here, home)[0], counted(100, 0));
  evict(home, here, {});
  EXPECT_TRUE(same_bits(home[0], counted(100, 0)));
}

TEST(Offload, AWriteThatFailsIsTheErrorOfWhoReadsTheHome) {
  const TempDir dir;
  OffloadStore store(Device::cpu(), dir.path());
  const Tensor home[] = {store.allocate({1 << 10}, DType::f32)};
  const Tensor here = fetch(home, {});
  here.storage()->wait_to_read();
  {
    const FileSizeLimit limit(64);
    evict(home, here, {});
    RankContext::current().queue(kDiskQueue).record().outlast();
  }
  expect_error([&] { home[0].to_vector<float>(); }, {"cannot write", dir.path(), "evict"});
  home[0].storage()->settle();
}

TEST(Offload, RowsRefuseWhatDoesNotFit) {
  const Tensor bytes = Tensor::empty({64}, DType::u8);
  std::vector<Tensor> floats{Tensor::empty({64}, DType::u8), ones({4})};
  const Tensor wrong = Tensor::empty({100}, DType::u8);
  expect_error([&] { call_op(op::copy_start, floats, OffloadAttrs{}); }, {"input 1 is f32[4]", "homes are u8[n]"});
  expect_error([&] { evict({&bytes, 1}, wrong, {}); }, {"copy_start evict: input 1 is u8[100]", "homes are u8[64]"});
  expect_error([&] { fetch({&bytes, 1}, {.in_flight = 0}); }, {"the least is 1"});
  std::vector<Tensor> three{bytes, bytes, bytes};
  expect_error([&] { call_op(op::copy_start, three, OffloadAttrs{.kind = CopyKind::refresh}); },
               {"copy_start refresh of 2 homes"});
  expect_error([&] { fetch_into(bytes, Tensor::empty({32}, DType::u8), {}); },
               {"input 0 is u8[32]", "homes are u8[64]"});
  std::vector<Tensor> one{bytes};
  expect_error([&] { call_op(op::copy_start, one, OffloadAttrs{}); }, {"copy_start needs homes"});
}

}  // namespace
}  // namespace sherd::testing
