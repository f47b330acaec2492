// The op table: rows are found by their names and have their kernels, also those added while others are called.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <thread>

#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"

namespace sherd::testing {
namespace {

Metas infer_copy(const InferCall& call) { return {{.shape = call.in[0].shape, .dtype = call.in[0].dtype}}; }

constexpr Op test_row(std::string_view name) { return {.name = name, .infer = infer_copy, .no_gradient = "test"}; }

void add_ten(const KernelCall& call) { call.out[0].mutable_data<float>()[0] = call.in[0].data<float>()[0] + 10; }

constinit const Op kUnregistered = test_row("unregistered");
constinit const Op kUnregisteredView{.name = "unregistered_view", .infer = infer_copy, .traits = {.view = true}};
constinit const Op kImpostor = test_row("add");
constinit const Op kLate = test_row("late"), kLater = test_row("later");

void register_late(OpTable& table) {
  table.add({&kLate, &kLater});
  table.kernel(kLate, Device::Kind::cpu, add_ten);
}

TEST(OpTable, EveryRowIsFoundByItsNameWhichIsUnique) {
  std::set<std::string_view> names;
  for (const Op* row : op_table().rows()) {
    EXPECT_TRUE(names.insert(row->name).second) << row->name;
    EXPECT_EQ(&find_op(row->name), row) << row->name;
    EXPECT_EQ(&kernels_of(*row), &op_table().kernels(*row)) << row->name;
  }
}

// What rows.h declares is the table, name by name: a constant that its family does not add is found here, and one that
// bears another's name.
TEST(OpTable, HoldsTheConstantsOfRowsH) {
  std::ifstream file(source_path("runtime/op/core/rows.h"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex declaration("extern const Op ([^;]*);"), name("\\w+");
  std::set<std::string> declared;
  for (std::sregex_iterator d(text.begin(), text.end(), declaration), end; d != end; ++d) {
    const std::string list = (*d)[1];
    for (std::sregex_iterator n(list.begin(), list.end(), name); n != end; ++n) {
      declared.insert(n->str());
      EXPECT_NO_THROW(find_op(n->str())) << "op::" << n->str();
    }
  }
  OpTable families;
  register_families(families);
  for (const Op* row : families.rows()) EXPECT_TRUE(declared.contains(std::string(row->name))) << row->name;
  EXPECT_EQ(families.rows().size(), declared.size());
  EXPECT_EQ(&find_op("add"), &op::add);
  EXPECT_EQ(&find_op("logical_not"), &op::logical_not);
}

TEST(OpTable, ARowThatNobodyAddedIsNamed) {
  const Tensor x = ones({1});
  expect_error([&] { call(kUnregistered, {}, x); }, {"op \"unregistered\" is not in the table", "add_rows()"});
  expect_error([&] { call(kUnregisteredView, {}, x); }, {"op \"unregistered_view\" is not in the table"});
  expect_error([&] { call(kImpostor, {}, x); }, {"op \"add\" is not in the table"});
  EXPECT_EQ(&find_op("add"), &op::add);
}

TEST(OpTable, TakesANameOnceAndKernelsForItsRowsOnly) {
  OpTable table;
  table.add({&op::add});
  expect_error([&] { table.add({&kImpostor}); }, {"op \"add\" is registered twice"});
  expect_error([&] { table.kernel(op::sub, Device::Kind::cpu, add_ten); },
               {"cpu kernel", "\"sub\"", "not in the table"});
  expect_error([&] { table.scratch(op::sub, Device::Kind::cpu, nullptr); }, {"\"sub\"", "not in the table"});
  table.kernel(op::add, Device::Kind::cuda, add_ten);
  EXPECT_EQ(table.kernels(op::add).kernel[static_cast<std::size_t>(Device::Kind::cuda)], Kernel{add_ten});
  EXPECT_EQ(table.kernels(op::add).kernel[static_cast<std::size_t>(Device::Kind::cpu)], nullptr);
  EXPECT_NE(kernels_of(op::add).kernel[static_cast<std::size_t>(Device::Kind::cpu)], nullptr) << "another table";
}

// Threads that add the rows and call them at once, beside threads that call others; once is enough.
TEST(OpTable, RowsJoinWhileOthersAreCalled) {
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&right] {
      const RankScope rank;
      const Tensor one = Tensor::from<float>({1}, {1});
      const bool plain = add(one, one).item<float>() == 2;
      add_rows(register_late);
      const bool late = call(kLate, {}, one).item<float>() == 11;
      right += plain && late && &find_op("late") == &kLate;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
  expect_error([] { call(kLater, {}, ones({1})); }, {"no cpu kernel for later"});
}

}  // namespace
}  // namespace sherd::testing
