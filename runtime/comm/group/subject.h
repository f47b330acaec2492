#pragma once
// What the collectives of a thread act on, for a scope: "blocks.3", and which part of it takes part: "without bias".
// Ranks compare both with everything else about a call, so those that are at different units, or tensors of one unit,
// of equal shapes are told so instead of mixing them, and errors name the unit.
#include <string_view>

#include "runtime/tensor/for_scope.h"

namespace sherd::comm {

/// Both texts are borrowed until the scope ends. Scopes nest; the innermost counts.
class SubjectScope {
 public:
  explicit SubjectScope(std::string_view subject, std::string_view part = {});

 private:
  const ForScope<std::string_view> subject_, part_;
};

/// Empty outside of all scopes.
std::string_view current_subject();
/// Empty where all of the subject takes part.
std::string_view current_part();

}  // namespace sherd::comm
