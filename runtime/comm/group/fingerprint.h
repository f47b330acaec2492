#pragma once
// What a rank says about the collective it is about to enter. Ranks compare these before any data moves: the
// hash decides, the text is what the error shows.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/comm/group/host_group.h"

namespace sherd::comm {

/// Built up part by part, without allocating: "all_gather #12 [f32 x 4,4; bf16 x 3,2]", or "all_gather #12 of lane 1
/// [...]"; of a subgroup "all_gather #12 of ranks 1,3 [...]"; in a SubjectScope "all_gather #12 for blocks.3 [...]",
/// or "all_gather #12 for blocks.3 without bias [...]"; with a purpose "all_gather #12 [...] (save_checkpoint)".
/// The text is clipped after about 200 characters; the hash covers everything.
class Fingerprint {
 public:
  static constexpr std::size_t kMaxText = 256;

  Fingerprint() = default;
  Fingerprint(CommOp op, std::int64_t sequence, int lane = 0, std::string_view members = {});
  /// send or recv: "send #3 to rank 1 [f32 x 4]". A send and the recv that fits it have the same hash.
  static Fingerprint of_pair(CommOp op, std::int64_t sequence, int lane, int peer, std::string_view members = {});
  void add_part(DType dtype, std::span<const std::int64_t> counts) { add_part(dtype, counts, dtype); }
  /// `source_dtype` differs where elements are cast on their way: "bf16 from f32 x 4,4". No counts: of the type only.
  /// Several blocks: "f32 in 2 blocks x 4,4".
  void add_part(DType dtype, std::span<const std::int64_t> counts, DType source_dtype, std::int64_t blocks = 1);
  /// Closes the list; exactly one of these four comes last.
  void close();
  void close_without_list();
  void close_with_root(int root);
  void close_with_reduction(const ReduceOptions& options);

  std::uint64_t hash() const { return hash_; }
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  void name_call(CommOp op, std::int64_t sequence, int lane, std::string_view members);
  void name_subject(std::string_view subject, std::string_view part);
  void name_purpose();
  void end_list();
  void mix_text(std::string_view text);
  void mix(std::uint64_t word);
  void append(std::string_view text);
  void append(std::int64_t number);
  void append_all(const auto&... parts) { (append(parts), ...); }

  std::uint64_t hash_ = 0;
  std::size_t size_ = 0;
  std::int64_t num_parts_ = 0, num_hidden_ = 0;
  std::array<char, kMaxText> text_;
};

}  // namespace sherd::comm
