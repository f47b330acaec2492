// Values for a scope, and what is not copied.
#include <stdexcept>
#include <type_traits>

#include <gtest/gtest.h>

#include "runtime/op/core/grad_mode.h"
#include "runtime/tensor/for_scope.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {
namespace {

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

}  // namespace
}  // namespace sherd
