// Values for a scope, numbers to go through, and what is not copied.
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/op/core/grad_mode.h"
#include "runtime/tensor/for_scope.h"
#include "runtime/tensor/indices.h"

namespace sherd {
namespace {

template <class Range>
std::vector<int> listed(const Range& range) {
  std::vector<int> numbers;
  for (const auto number : range) numbers.push_back(static_cast<int>(number));
  return numbers;
}

TEST(ForScope, PutsBackWhatWasThere) {
  int place = 1;
  {
    const ForScope outer(&place, 2);
    EXPECT_EQ(place, 2);
    {
      const ForScope inner(&place, 3);
      place = 4;  // within the scope
    }
    EXPECT_EQ(place, 2);
  }
  EXPECT_EQ(place, 1);
}

TEST(ForScope, PutsBackWhereAnExceptionEndsIt) {
  int place = 1;
  EXPECT_THROW(
      {
        const ForScope scope(&place, 2);
        throw std::runtime_error("ends it");
      },
      std::runtime_error);
  EXPECT_EQ(place, 1);
}

TEST(ForScope, WithoutAPlaceDoesNothing) {
  int* const nowhere = nullptr;
  const ForScope scope(nowhere, 2);
}

TEST(NoCopy, NeitherCopiesNorMoves) {
  struct Derived : NoCopy {};
  static_assert(!std::is_copy_constructible_v<Derived> && !std::is_move_constructible_v<Derived>);
  static_assert(!std::is_copy_assignable_v<Derived> && !std::is_move_assignable_v<Derived>);
  static_assert(!std::is_copy_constructible_v<GradMode> && !std::is_move_constructible_v<GradMode>);
  static_assert(std::is_empty_v<NoCopy>);
}

TEST(Numbers, GoFromTheFirstUpToTheEnd) {
  EXPECT_EQ(listed(up_to(3)), (std::vector{0, 1, 2}));
  EXPECT_EQ(listed(Numbers<int>(2, 5)), (std::vector{2, 3, 4}));
  static_assert(std::is_same_v<decltype(*up_to(3).begin()), int>);
}

TEST(Numbers, AreNoneWhereTheEndIsNotMore) {
  EXPECT_TRUE(listed(up_to(0)).empty());
  EXPECT_TRUE(listed(up_to(-1)).empty());
  EXPECT_TRUE(listed(Numbers<std::size_t>(3, 2)).empty());
}

TEST(Numbers, OfItemsAreThoseOfTheBeginning) {
  std::vector<int> items{7, 8};
  for (const std::size_t i : indices(items)) items.push_back(items[i]);
  EXPECT_EQ(items, (std::vector{7, 8, 7, 8}));
}

}  // namespace
}  // namespace sherd
