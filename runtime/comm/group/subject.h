#pragma once
// What the collectives of a thread act on, for a scope: "blocks.3". Ranks compare it with everything else about a call,
// so those that are at different units of equal shapes are told so instead of mixing them, and errors name the unit.
#include <string_view>

namespace sherd::comm {

/// `subject` is borrowed until the scope ends. Scopes nest; the innermost counts.
class SubjectScope {
 public:
  explicit SubjectScope(std::string_view subject);
  ~SubjectScope();
  SubjectScope(const SubjectScope&) = delete;
  SubjectScope& operator=(const SubjectScope&) = delete;

 private:
  std::string_view outer_;
};

/// Empty outside of all scopes.
std::string_view current_subject();

}  // namespace sherd::comm
