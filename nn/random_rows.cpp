// A random row's counter is (block of elements, step). The upper half of the step is free, and counts the calls of one
// row within the step. All counts of a rank are in one tensor, so that a new step is one fill:
//
//   @random_step  i64[]     step
//   @random_calls i64[64]   calls x 2^32, by row     draw = step + calls[r];  calls[r] += 2^32
//   @random_call  i64[]     2^32
//   @random_calls_kept      the same as of the last update, or 0: what a step that was left goes back to
//   @random_calls_begun     the same as of the first part of a step's work: the other parts count on from there
#include "nn/random_rows.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {

constexpr double kOneCall = 4294967296.0;  // 2^32
constexpr std::int64_t kFirstPlaces = 64;
constexpr std::size_t kPartsKept = 16;  // more than the recordings that a captured step keeps
using NumberedPart = std::pair<std::optional<BatchPart>, std::int64_t>;

struct RankRows {
  // Apart from the counters, which are slots: an update makes none.
  HostState<RowsThatDraw> state{[](const void*) { return std::string("rows that draw"); }, this};
  std::shared_ptr<Slot> counters;  // made by the first who asks
};
RankRows& rank_rows() { return RankContext::current().state<RankRows>(); }
const MadeOnAsking rows_of_rank([] { rank_rows(); });

class Counters final : public Slot {
 public:
  Counters()
      : Slot("random_step"),
        calls_("random_calls"),
        kept_("random_calls_kept"),
        begun_("random_calls_begun"),
        one_call_("random_call") {
    set(Tensor::scalar(0, DType::i64));
    for (Slot* slot : counts()) {
      slot->set(zeros({kFirstPlaces}, DType::i64));
      slot->set_of_step();
    }
    one_call_.set(full({}, kOneCall, DType::i64));
  }
  void move_to(Device device) {
    if (value().device() == device || device.is_meta()) return;
    set(to(value(), device));
    for (Slot* slot : counts()) slot->set(to(slot->value(), device));
    one_call_.set(to(one_call_.value(), device));
  }
  void restart() {
    if (!has_rows() && freed_.empty()) return;
    for (Slot* slot : counts()) fill_into(slot->value(), 0);
    unused_.merge(freed_);
  }
  /// Numbers of parts that are set for long are not negative.
  void begin_part(const BatchPart& part, std::int64_t number) {
    drawn_by_.set_unseen<&DrawnBy::part>(part);
    begin_part(number, part.all);
  }
  void begin_part(const MicroBatch& micro) {
    drawn_by_.set_unseen<&DrawnBy::micro>(micro);
    begin_part(micro.number, micro.count);
  }
  void begin_part(std::int64_t number, std::int64_t all) {
    drawn_by_.set<&DrawnBy::which_part>(-(((number + 1) << 32) + all));
    // Also before the first row draws: a replay finds other counts.
    if (number == 0) copy_into(begun_.value(), calls_.value());
    else copy_into(calls_.value(), begun_.value());
  }
  void end_part(const DrawnBy& before) {
    drawn_by_.set_unseen<&DrawnBy::part>(before.part);
    drawn_by_.set_unseen<&DrawnBy::micro>(before.micro);
    drawn_by_.set<&DrawnBy::which_part>(before.which_part);
  }
  void keep() { copy_into(kept_.value(), calls_.value()); }
  void take_back() { copy_into(calls_.value(), kept_.value()); }
  const DrawnBy& drawn_by() const {
    drawn_by_.read_all();
    return drawn_by_.all();
  }
  void set_seed(std::uint64_t seed) { drawn_by_.set<&DrawnBy::seed>(seed); }
  void set_part(const std::optional<BatchPart>& part) {
    if (drawn_by_.set_unseen<&DrawnBy::part>(part)) drawn_by_.set<&DrawnBy::which_part>(number_of(part));
  }
  /// A number of its own for a row, the smallest that is free, as on a rank that begins; its count is 0.
  std::int64_t take() {
    if (!unused_.empty()) return unused_.extract(unused_.begin()).value();
    // A captured step must not reset a count: a replay would do so at every call.
    if (!freed_.empty() && !RankContext::current().capture) {
      const std::int64_t place = freed_.extract(freed_.begin()).value();
      for (Slot* slot : counts()) fill_into(element_of(*slot, place), 0);
      return place;
    }
    if (taken_ == calls_.value().size(0)) grow();
    return taken_++;
  }
  void give_back(std::int64_t place) {
    freed_.insert(place);
    note_rows();
  }
  /// A module may be destroyed after its rank's scope, or on another thread.
  void note_rows() {
    if (!RankContext::current_or_null()) return;
    if (RankRows& rows = rank_rows(); rows.counters.get() == this) rows.state.set<&RowsThatDraw::any>(has_rows());
  }
  /// 0-d i64: the counter of the next call.
  Tensor next(std::int64_t place) {
    const Tensor calls = element_of(calls_, place);
    Tensor draw = add(value(), calls);
    copy_into(calls, one_call_.value(), true);
    return draw;
  }

 private:
  std::array<Slot*, 3> counts() { return {&calls_, &kept_, &begun_}; }
  /// Ranks that are given parts alike number them alike. One of the latest has the number that it had before.
  std::int64_t number_of(const std::optional<BatchPart>& part) {
    const auto known = std::ranges::find(parts_, part, &NumberedPart::first);
    if (known != parts_.end()) return known->second;
    const std::int64_t number = next_part_++;
    parts_[static_cast<std::size_t>(number) % parts_.size()] = {part, number};
    return number;
  }
  bool has_rows() const { return std::cmp_less(freed_.size() + unused_.size(), taken_); }
  static Tensor element_of(const Slot& slot, std::int64_t place) {
    const Tensor& all = slot.value();
    return Tensor::over(all.storage(), {}, {}, all.offset() + place, DType::i64);
  }
  void grow() {
    for (Slot* slot : counts()) {
      const Tensor old = slot->value();
      const Tensor larger = zeros({2 * old.size(0)}, DType::i64, old.device());
      copy_into(narrow(larger, 0, 0, old.size(0)), old);
      slot->set(larger);
    }
  }

  HostState<DrawnBy> drawn_by_{[](const void*) { return std::string("random rows"); }, this};
  Slot calls_;
  Slot kept_;   // as of the last update
  Slot begun_;  // as of the first part
  Slot one_call_;
  std::array<NumberedPart, kPartsKept> parts_{};  // that set_batch_part() was given; unset is 0 from the beginning
  std::int64_t next_part_ = 1;
  std::int64_t taken_ = 0;
  std::set<std::int64_t> freed_, unused_;  // places of rows that are gone; of these, whose count is 0 again
};

std::shared_ptr<Slot>& counters_slot() {
  std::shared_ptr<Slot>& counters = rank_rows().counters;
  if (!counters) counters = std::make_shared<Counters>();
  return counters;
}
// Made here only.
Counters& as_counters(Slot& slot) { return static_cast<Counters&>(slot); }

}  // namespace

RandomCalls::~RandomCalls() {
  for (const Place& place : places_)
    if (const std::shared_ptr<Slot> counters = place.counters.lock()) as_counters(*counters).give_back(place.number);
}

std::int64_t RandomCalls::place_in(const std::shared_ptr<Slot>& counters) {
  const auto known = std::ranges::find_if(places_, [&](const Place& p) { return p.counters.lock() == counters; });
  if (known != places_.end()) return known->number;
  std::erase_if(places_, [](const Place& p) { return p.counters.expired(); });
  const std::int64_t number = as_counters(*counters).take();
  places_.push_back({counters, number});
  as_counters(*counters).note_rows();
  return number;
}

void RandomCalls::take_place() {
  if (RankContext::current_or_null()) place_in(counters_slot());
}

Tensor RandomCalls::next(Device device) {
  const std::shared_ptr<Slot>& slot = counters_slot();
  Counters& counters = as_counters(*slot);
  counters.move_to(device);
  const std::int64_t place = place_in(slot);
  return device.is_meta() ? counters.value() : counters.next(place);  // shapes draw nothing
}

Slot& random_step() { return *counters_slot(); }

Slot& random_step(Device device) {
  Counters& counters = as_counters(*counters_slot());
  counters.move_to(device);
  return counters;
}

void set_step(std::int64_t step) {
  RankContext& context = RankContext::current();
  Counters& counters = as_counters(*counters_slot());
  // A replay would begin the step that was recorded.
  if (context.capture) context.capture->refuse_read(counters.value(), "set_step(), which belongs before the step,");
  counters.restart();
  context.step = step;
  counters.assign(Tensor::scalar(static_cast<double>(step), DType::i64));
}

const HostState<RowsThatDraw>& rows_that_draw() { return rank_rows().state; }

void keep_random_calls() {
  if (rows_that_draw().get<&RowsThatDraw::any>()) as_counters(*counters_slot()).keep();
}

void take_back_random_calls(bool is_update_of_all) {
  const auto& slot = rank_rows().counters;
  if (!slot) return;
  if (is_update_of_all) as_counters(*slot).take_back();
  else as_counters(*slot).restart();
}

void set_seed(Seed seed) { as_counters(*counters_slot()).set_seed(seed.value); }

void set_batch_part(std::optional<BatchPart> part) {
  check(!part || (part->first >= 0 && part->rows >= 0 && part->all > 0 && part->first + part->rows <= part->all),
        "set_batch_part: rows {} to {} of {} are no part of a batch", part ? part->first : 0,
        part ? part->first + part->rows : 0, part ? part->all : 0);
  as_counters(*counters_slot()).set_part(part);
}

BatchPartScope::BatchPartScope(const BatchPart& part, std::int64_t number) : outer_(drawn_by()) {
  as_counters(*counters_slot()).begin_part(part, number);
}

BatchPartScope::BatchPartScope(const MicroBatch& micro) : outer_(drawn_by()) {
  as_counters(*counters_slot()).begin_part(micro);
}

BatchPart MicroBatch::of(const BatchPart& rank) const {
  const std::int64_t first = is_of_rank ? rank.first * count + number * rank.rows : number * rank.all + rank.first;
  return {first, rank.rows, rank.all * count};
}

BatchPartScope::~BatchPartScope() { as_counters(*counters_slot()).end_part(outer_); }

const DrawnBy& drawn_by() { return as_counters(*counters_slot()).drawn_by(); }

}  // namespace sherd::nn
