#include "runtime/memory/storage.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd {
namespace {

using enum MemoryCategory;

Accounting& account() { return RankContext::current().allocator().accounting(); }

TEST(Storage, IdsAreOfOneStorageInTheProcess) {
  std::set<std::uint64_t> ids;
  std::vector<Ref<Storage>> all;
  const auto make = [&] {
    for (int i = 0; i < 100; ++i) ids.insert(all.emplace_back(Storage::allocate(8, workspace))->id());
  };
  make();
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      const RankScope scope;
      make();
    }).join();
  EXPECT_EQ(ids.size(), all.size());
}

TEST(Storage, BytesBelongToOneCategoryUntilRetagged) {
  const std::int64_t before = account().current(gradients), workspace_before = account().current(workspace);
  {
    const Ref<Storage> s = Storage::allocate(1000, workspace);
    EXPECT_EQ(account().current(workspace), workspace_before + 1000);
    s->retag(gradients);
    EXPECT_EQ(s->category(), gradients);
    EXPECT_EQ(account().current(workspace), workspace_before);
    EXPECT_EQ(account().current(gradients), before + 1000);
  }
  EXPECT_EQ(account().current(gradients), before) << "freed from the account it was moved to";
}

TEST(Storage, ReleaseAndRestoreUnderLivingHandles) {
  const std::int64_t before = account().current(unsharded);
  const Ref<Storage> s = Storage::released(4000, unsharded);
  EXPECT_FALSE(s->is_present());
  EXPECT_EQ(account().current(unsharded), before);
  const Tensor t = Tensor::over(s, {1000}, {1}, 0, DType::f32);
  s->restore_data();
  EXPECT_TRUE(s->is_present());
  EXPECT_EQ(account().current(unsharded), before + 4000);
  fill_into(t, 2);
  EXPECT_EQ(sum(t).item<float>(), 2000);
  s->release_data();
  s->release_data();
  EXPECT_EQ(account().current(unsharded), before);
  s->retag(parameters);  // absent bytes are on no account
  s->restore_data();
  EXPECT_EQ(account().current(unsharded), before);
}

TEST(Storage, KeepsItsMemoryWhileItIsReleased) {
  const std::int64_t before = account().current(unsharded), others = account().current(parameters);
  {
    const Ref<Storage> s = Storage::released(4000, unsharded);
    s->set_keeps_memory(true);
    EXPECT_EQ(account().current(unsharded), before) << "nothing to keep yet";
    EXPECT_EQ(s->kept_address(), nullptr);
    s->restore_data();
    const std::byte* const address = s->address();
    EXPECT_EQ(s->kept_address(), nullptr) << "it is present";
    s->release_data();
    EXPECT_EQ(s->kept_address(), address);
    EXPECT_FALSE(s->is_present());
    EXPECT_EQ(s->address(), nullptr) << "what is kept is not to be read";
    EXPECT_EQ(account().current(unsharded), before + 4000);
    s->restore_data();
    EXPECT_EQ(s->address(), address);
    s->release_data();
    s->retag(parameters);
    EXPECT_EQ(account().current(parameters), others + 4000);
    s->set_keeps_memory(false);
    EXPECT_EQ(s->kept_address(), nullptr);
    EXPECT_EQ(account().current(parameters), others);
    s->set_keeps_memory(true);
    s->restore_data();
    s->release_data();
  }
  EXPECT_EQ(account().current(unsharded), before);
  EXPECT_EQ(account().current(parameters), others) << "kept memory goes with the last handle";
}

TEST(Storage, ResidencySaysWhereTheBytesAre) {
  const RankScope rank;
  const Ref<Storage> s = Storage::released(4, unsharded);
  EXPECT_EQ(s->residency(), Residency::released);
  s->restore_data();
  EXPECT_EQ(s->residency(), Residency::present);
  for (const bool writes : {false, true}) {
    const Loan loans[] = {{s, writes}};
    RankContext::current().queue("gather").submit({.name = "work", .run = [] {}, .loans = loans});
    EXPECT_EQ(s->residency(), Residency::lent);
    s->wait_to_write();
    EXPECT_EQ(s->residency(), Residency::present);
  }
  s->set_keeps_memory(true);
  s->release_data();
  EXPECT_EQ(s->residency(), Residency::released) << "what is kept is not to be read";
  const RankScope ghost("", {.ghost = true});
  EXPECT_EQ(Storage::released(4, unsharded)->residency(), Residency::ghost);
  EXPECT_EQ(Storage::allocate(4, unsharded)->residency(), Residency::ghost);
}

// A state, which no address and no number of bytes tells.
TEST(Storage, OneOfNoBytesIsPresentOrReleasedAsOthers) {
  EXPECT_TRUE(Storage::allocate(0, activations)->is_present());
  EXPECT_EQ(Storage::allocate(0, activations)->read(), nullptr);
  for (const bool keeps : {false, true}) {
    const Ref<Storage> s = Storage::released(0, unsharded);
    s->set_keeps_memory(keeps);
    EXPECT_EQ(s->residency(), Residency::released);
    s->restore_data();
    EXPECT_EQ(s->residency(), Residency::present);
    s->release_data();
    EXPECT_EQ(s->residency(), Residency::released);
  }
}

TEST(Storage, ReleasedBytesAreNeitherReadNorWritten) {
  const RankScope rank;
  for (const std::int64_t bytes : {0, 8})
    for (const bool keeps : {false, true}) {
      const Ref<Storage> s = Storage::allocate(bytes, unsharded);
      s->set_keeps_memory(keeps);
      s->release_data();
      testing::expect_error([&] { s->read(); }, {"of unsharded) is released", "unshard()"});
      testing::expect_error([&] { s->write(); }, {"is released"});
      testing::expect_error([&] { s->wait_to_read(); }, {"is released"});
      testing::expect_error([&] { s->wait_to_write(); }, {"is released"});
      s->restore_data();
      s->wait_to_write();
      EXPECT_EQ(s->read() != nullptr, bytes > 0);
    }
}

// Out of memory on the way back: it stays released.
TEST(Storage, OneThatFindsNoMemoryStaysReleased) {
  const RankScope rank;
  const Ref<Storage> s = Storage::released(1 << 20, unsharded);
  RankContext::current().allocator().set_limit(1 << 10);
  EXPECT_THROW(s->restore_data(), OutOfMemory);
  EXPECT_EQ(s->residency(), Residency::released);
}

TEST(Storage, BorrowedMemoryIsGivenBackOnceByTheLastHandle) {
  int released = 0;
  float memory[2] = {1, 2};
  const std::int64_t before = account().total();
  {
    Tensor t = Tensor::over(Storage::borrow(memory, sizeof(memory), [&] { ++released; }), {2}, {1}, 0, DType::f32);
    const Tensor view = narrow(t, 0, 1, 1);
    t = Tensor();
    EXPECT_EQ(released, 0);
    EXPECT_EQ(view.item<float>(), 2);
    EXPECT_EQ(account().total(), before) << "not this rank's memory";
  }
  EXPECT_EQ(released, 1);
}

TEST(Storage, IdsAreUnique) {
  const Ref<Storage> a = Storage::allocate(8, activations), b = Storage::allocate(8, activations);
  EXPECT_NE(a->id(), b->id());
}

/// A unit whose parameter is gathered for forward, released, and gathered again when backward needs it.
class Unit final : public StorageOwner {
 public:
  Unit() : storage_(Storage::released(3 * 8, MemoryCategory::unsharded)) { storage_->owner = this; }
  void ensure_present(Storage& s) override {
    EXPECT_EQ(&s, storage_.get());
    ++asked;
    gather();
  }
  void gather() {
    if (storage_->is_present()) return;
    storage_->restore_data();
    auto* values = reinterpret_cast<double*>(storage_->write());
    for (int i = 0; i < 3; ++i) values[i] = i + 1;
    storage_->set_version(7);
  }
  void release() { storage_->release_data(); }
  Tensor tensor() { return Tensor::over(storage_, {3}, {1}, 0, DType::f64); }
  int asked = 0;

 private:
  Ref<Storage> storage_;
};

TEST(Storage, AReadOfReleasedBytesIsAnError) {
  Unit unit;
  unit.gather();
  const Tensor values = unit.tensor();
  EXPECT_EQ(values.to_vector<double>(), (std::vector<double>{1, 2, 3}));
  unit.release();
  testing::expect_error([&] { values.to_vector<double>(); },
                        {"to_vector(): f64[3] has no bytes now", "24 B of unsharded) is released", "unshard()"});
  EXPECT_EQ(unit.asked, 0) << "only saved tensors ask the owner";
}

TEST(Storage, ASavedTensorAsksItsOwnerForTheBytes) {
  Unit unit;
  unit.gather();
  Slot weight("weight", true);
  weight.set(unit.tensor());
  const Tensor y = square(weight.value());
  unit.release();
  backward(sum(y));
  EXPECT_EQ(unit.asked, 1);
  EXPECT_EQ(weight.grad().to_vector<double>(), (std::vector<double>{2, 4, 6}));
}

}  // namespace
}  // namespace sherd
