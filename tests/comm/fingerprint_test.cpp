#include "runtime/comm/group/fingerprint.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/comm/group/subject.h"
#include "runtime/exec/purpose.h"

namespace sherd::comm {
namespace {

Fingerprint gather(std::int64_t sequence, const std::vector<std::int64_t>& counts, int num_parts = 1) {
  Fingerprint call(CommOp::all_gather, sequence);
  for (int i = 0; i < num_parts; ++i) call.add_part(DType::bf16, counts);
  call.close();
  return call;
}

TEST(Fingerprint, ReadsLikeTheCall) {
  EXPECT_EQ(gather(12, {4, 0}).text(), "all_gather #12 [bf16 x 4,0]");
  EXPECT_EQ(gather(12, {4, 0}, 2).text(), "all_gather #12 [bf16 x 4,0; bf16 x 4,0]");
  EXPECT_EQ(gather(3, {}, 0).text(), "all_gather #3 []");
  EXPECT_EQ(Fingerprint(CommOp::barrier, 7).text(), "barrier #7");
}

TEST(Fingerprint, EverythingEntersTheHash) {
  const Fingerprint call = gather(1, {2, 3});
  EXPECT_EQ(call.hash(), gather(1, {2, 3}).hash());
  EXPECT_NE(call.hash(), gather(2, {2, 3}).hash());
  EXPECT_NE(call.hash(), gather(1, {3, 2}).hash());
  EXPECT_NE(call.hash(), gather(1, {2, 3}, 2).hash());
  EXPECT_NE(gather(1, {1, 1}, 1).hash(), gather(1, {1}, 2).hash());
}

TEST(Fingerprint, NamesWhatItActsOn) {
  const auto of = [](std::string_view subject) {
    const SubjectScope scope(subject);
    return gather(4, {1, 2});
  };
  EXPECT_EQ(of("blocks.1").text(), "all_gather #4 for blocks.1 [bf16 x 1,2]");
  EXPECT_EQ(of("").text(), "all_gather #4 [bf16 x 1,2]");
  EXPECT_EQ(of("a").hash(), of("a").hash());
  EXPECT_NE(of("a").hash(), of("b").hash());
  EXPECT_NE(of("ab").hash(), of("ba").hash());
  EXPECT_NE(of("a").hash(), of("").hash());
  EXPECT_EQ(of("").hash(), gather(4, {1, 2}).hash());
  const std::string layer = ".attention.projection.weight", path(60, 'm');
  EXPECT_NE(of(path + layer).text().find(layer + " ["), std::string_view::npos) << of(path + layer).text();
  EXPECT_LT(of(path + layer).text().size(), 100u);
}

TEST(Fingerprint, F192_NamesThePartOfTheSubject) {
  const auto of = [](std::string_view subject, std::string_view part) {
    const SubjectScope scope(subject, part);
    return gather(4, {1, 2});
  };
  EXPECT_EQ(of("blocks.1", "without bias").text(), "all_gather #4 for blocks.1 without bias [bf16 x 1,2]");
  EXPECT_EQ(of("blocks.1", "").hash(), [] {
    const SubjectScope scope("blocks.1");
    return gather(4, {1, 2}).hash();
  }());
  EXPECT_NE(of("a", "without b").hash(), of("a", "without c").hash());
  EXPECT_NE(of("a", "without b").hash(), of("a", "").hash());
  const std::string many(500, 'm');
  EXPECT_NE(of("a", many + "b").hash(), of("a", many + "c").hash());
  EXPECT_LT(of("a", many).text().size(), 130u);
}

TEST(Fingerprint, ShowsItsPurposeAndDoesNotCompareIt) {
  const PurposeScope saves("save_checkpoint");
  const Fingerprint own = gather(4, {1, 2});
  EXPECT_EQ(own.text(), "all_gather #4 [bf16 x 1,2] (save_checkpoint)");
  {
    const PurposeScope inner("gather_text");
    EXPECT_EQ(gather(4, {1, 2}).text(), own.text()) << "what the program called counts";
    const PurposeScope work(Purpose{.function = "clip_grad_norm", .work = "all_reduce", .module = "blocks.3"});
    Fingerprint call(CommOp::all_reduce, 2);
    call.close_with_reduction({});
    EXPECT_EQ(call.text(), "all_reduce #2 [ sum] (all_reduce at blocks.3 in clip_grad_norm)");
    EXPECT_EQ(gather(4, {1, 2}).hash(), own.hash());
  }
  Fingerprint barrier(CommOp::barrier, 7);
  barrier.close_without_list();
  EXPECT_EQ(barrier.text(), "barrier #7 (save_checkpoint)");
}

TEST(Fingerprint, LongListsAreClippedButHashed) {
  const std::vector<std::int64_t> wide(250, std::numeric_limits<std::int64_t>::max());
  Fingerprint one(CommOp::reduce_scatter, std::numeric_limits<std::int64_t>::max()), other = one;
  for (int i = 0; i < 1000; ++i)
    one.add_part(DType::f32, wide), other.add_part(i < 999 ? DType::f32 : DType::f64, wide);
  one.close_with_reduction({.kind = ReduceKind::product, .scale = 1.0 / 3});
  other.close_with_reduction({.kind = ReduceKind::product, .scale = 1.0 / 3});
  EXPECT_LE(one.text().size(), Fingerprint::kMaxText);
  EXPECT_NE(one.text().find("999 more product times 0.3333333333333333]"), std::string_view::npos) << one.text();
  EXPECT_EQ(one.text(), other.text());
  EXPECT_NE(one.hash(), other.hash());
}

}  // namespace
}  // namespace sherd::comm
