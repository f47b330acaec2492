#include "runtime/comm/group/fingerprint.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "runtime/comm/group/call_place.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {
constexpr std::size_t kSubjectSize = 48;      // of a longer one the end is shown
constexpr std::size_t kSubjectPartSize = 72;  // of a longer one the start is shown
constexpr std::size_t kPartsEnd = 160;        // parts beyond this are counted, not spelled out
constexpr std::size_t kCountsEnd = 190;       // room stays for the number of hidden parts and the reduction

thread_local constinit std::string_view innermost_place __attribute__((tls_model("initial-exec")));
}  // namespace

CallPlaceScope::CallPlaceScope(std::string_view place) : place_(&innermost_place, place) {}

std::string_view current_place() { return innermost_place; }

std::string_view name(CommOp op) {
  constexpr std::string_view names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                        "barrier",    "all_to_all",     "send",       "recv"};
  return names[static_cast<int>(op)];
}

Fingerprint::Fingerprint(CommOp op, std::int64_t sequence, int lane, std::string_view members) {
  mix(static_cast<std::uint64_t>(op));
  mix(static_cast<std::uint64_t>(sequence));
  name_call(op, sequence, lane, members);
}

Fingerprint Fingerprint::of_pair(CommOp op, std::int64_t sequence, int lane, int peer, std::string_view members) {
  Fingerprint call;
  call.mix(static_cast<std::uint64_t>(sequence));
  call.name_call(op, sequence, lane, members);
  call.append_all(op == CommOp::send ? " to rank " : " from rank ", std::int64_t{peer});
  return call;
}

void Fingerprint::name_call(CommOp op, std::int64_t sequence, int lane, std::string_view members) {
  append_all(name(op), " #", sequence, members.empty() ? "" : " of ", members);
  if (lane != 0) append_all(" of lane ", std::int64_t{lane});
  name_subject(current_subject(), current_part());
}

void Fingerprint::name_subject(std::string_view subject, std::string_view part) {
  if (subject.empty()) return;
  mix_text(subject);
  append_all(" for ", subject.size() > kSubjectSize ? "..." : "",
             subject.substr(subject.size() - std::min(subject.size(), kSubjectSize)));
  if (part.empty()) return;
  mix_text(part);
  append_all(" ", part.substr(0, kSubjectPartSize), part.size() > kSubjectPartSize ? "..." : "");
}

void Fingerprint::mix_text(std::string_view text) { mix(fnv1a(text, 0)); }

void Fingerprint::add_part(DType dtype, std::span<const std::int64_t> counts, DType source_dtype, std::int64_t blocks) {
  mix(static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(source_dtype));
  mix(counts.size());
  for (const std::int64_t count : counts) mix(static_cast<std::uint64_t>(count));
  if (blocks != 1) mix(static_cast<std::uint64_t>(blocks));

  const bool is_first = num_parts_++ == 0;
  if (size_ > kPartsEnd) {
    ++num_hidden_;
    return;
  }
  append_all(is_first ? " [" : "; ", sherd::name(dtype));
  if (source_dtype != dtype) append_all(" from ", sherd::name(source_dtype));
  if (blocks != 1) append_all(" in ", blocks, " blocks");
  if (!counts.empty()) append(" x ");
  for (const std::size_t i : indices(counts)) {
    if (i > 0) append(",");
    if (size_ > kCountsEnd) return append("...");
    append(counts[i]);
  }
}

// "(save_checkpoint)", "(unshard)", "(all_reduce at blocks.3 in clip_grad_norm)"; ", call 3 over all queues".
void Fingerprint::name_purpose() {
  const auto& [function, work, module] = current_purpose();
  if (!function.empty() || !work.empty())
    append_all(" (", work, module.empty() ? "" : " at ", module, work.empty() || function.empty() ? "" : " in ",
               function, ")");
  if (const std::string_view place = current_place(); !place.empty()) {
    mix_text(place);
    append_all(", ", place);
  }
}

void Fingerprint::end_list() {
  if (num_parts_ == 0) append(" [");
  if (num_hidden_ > 0) append_all("; ", num_hidden_, " more");
}

void Fingerprint::close() {
  end_list();
  append("]");
  name_purpose();
}

void Fingerprint::close_without_list() { name_purpose(); }

void Fingerprint::close_with_root(int root) {
  mix(static_cast<std::uint64_t>(root));
  end_list();
  append_all(" root ", std::int64_t{root}, "]");
  name_purpose();
}

void Fingerprint::close_with_reduction(const ReduceOptions& options) {
  mix(static_cast<std::uint64_t>(options.kind));
  mix(std::bit_cast<std::uint64_t>(options.scale));
  end_list();
  append_all(" ", sherd::name(options.kind), options.scale == 1 ? "" : fmt::format(" times {}", options.scale), "]");
  name_purpose();
}

// One multiply per word; the shift carries high bits down so that every input bit reaches every output bit.
void Fingerprint::mix(std::uint64_t word) {
  hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u;
  hash_ ^= hash_ >> 32;
}

void Fingerprint::append(std::string_view text) {
  const std::size_t n = std::min(text.size(), kMaxText - size_);
  std::copy_n(text.data(), n, text_.data() + size_);
  size_ += n;
}

void Fingerprint::append(std::int64_t number) {
  size_ =
      static_cast<std::size_t>(std::to_chars(text_.data() + size_, text_.data() + kMaxText, number).ptr - text_.data());
}

}  // namespace sherd::comm
