#pragma once
// State of the library that a step reads beside tensors: modes, hooks, knobs. A class keeps it in one struct that lists
// its fields (attr_kind.h), and each field says who sees that it has changed between two calls of a captured step.
//
//   struct ModuleState {
//     bool training = true;
//     static constexpr AttrField fields[] = {attr<&ModuleState::training>("training").seen_by(SeenBy::guard,
//     "dropout")};
//   };
//   HostState<ModuleState> state_{label_of, this};
//   state_.get<&ModuleState::training>()              a recording notes that the step has read it
//   state_.set<&ModuleState::training>(false)         a replay of that step finds another value, and records again
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/op/attrs/attr_kind.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// The fields of one object, on the rank that has made it. Fields seen by a guard become settings of recordings (see
/// StepSetting) called "blocks.3.drop training", when they are first read by one or a program asks for them.
class StateCells : NoCopy {
 public:
  /// `label` is what messages call the object now; it is asked for when a setting is made, and never during
  /// construction.
  using Label = std::string (*)(const void* owner);

  /// The setting of the field of that name, as the step_names.h of its rank knows it; null unless a guard sees it.
  std::shared_ptr<const StepSetting> setting(std::size_t field) const;
  /// "blocks.3.drop training"
  std::string name_of(std::size_t field) const;
  const AttrKind& kind() const { return kind_; }

 protected:
  StateCells(const AttrKind& kind, const void* object, Label label, const void* owner);
  ~StateCells();
  void read(std::size_t field) const {
    if (RankContext::current().capture) [[unlikely]]
      note_read(field);
  }
  void changed(std::size_t field) const;

 private:
  void note_read(std::size_t field) const;
  std::string text_of(std::size_t field) const;

  const AttrKind& kind_;
  const void* const object_;
  const Label label_;
  const void* const owner_;
  mutable std::vector<std::shared_ptr<StepSetting>> cells_;  // by field, or empty; null: nobody has asked for it
  Registered<StateCells> registered_{this};
};

/// A struct of fields, with its cells.
template <AttrStruct S>
class HostState final : public StateCells {
 public:
  HostState(Label label, const void* owner) : StateCells(attr_kind<S>, &now_, label, owner) {}

  /// The value, which the step that is being recorded has read.
  template <auto Member>
  const auto& get() const {
    if constexpr (is_guarded<Member>()) read(index_of<Member>());
    return now_.*Member;
  }
  /// Returns whether it is another value than before.
  template <auto Member, class T>
  bool set(T value) {
    if (now_.*Member == value) return false;
    now_.*Member = std::move(value);
    changed(index_of<Member>());
    return true;
  }
  /// The values, for what is read by no step, or has been noted already.
  const S& all() const { return now_; }
  /// Sets a member that is no field, which nobody sees by itself; returns whether it is another value.
  template <auto Member, class T>
  bool set_unseen(T value) {
    return std::exchange(now_.*Member, value) != value;
  }
  /// The step that is being recorded has read every field.
  void read_all() const {
    for (std::size_t i = 0; i < std::size(S::fields); ++i) read(i);
  }

 private:
  template <auto Member>
  static constexpr std::size_t index_of() {
    for (std::size_t i = 0; i < std::size(S::fields); ++i)
      if (S::fields[i].at == attr<Member>("").at) return i;
    return std::size(S::fields);
  }
  template <auto Member>
  static constexpr bool is_guarded() {
    static_assert(index_of<Member>() < std::size(S::fields), "the member is not among the struct's fields");
    return S::fields[index_of<Member>()].seen == SeenBy::guard;
  }

  S now_;
};

/// How often something that has no value to compare was changed: a function of the user's, a list.
struct Changes {
  std::int64_t count = 0;
  friend bool operator==(const Changes&, const Changes&) = default;
  Changes next() const { return {count + 1}; }
  static constexpr AttrField fields[] = {attr<&Changes::count>("changes")};
};

/// Says, at namespace scope, how state is made that each rank has one of and that is there once somebody has asked for
/// it, so that a field of it is found by name on a rank where nobody has.
class MadeOnAsking {
 public:
  explicit MadeOnAsking(void (*make)());
};

/// This rank's setting of that name, made if nobody has read it yet; null if nothing has such a field.
std::shared_ptr<const StepSetting> setting_called(std::string_view name);

}  // namespace sherd
