#pragma once
// Which place the collectives of a thread have among others, for a scope: "call 3 over all queues". Ranks compare it
// with everything else about a call (fingerprint.h), and errors show it where it is what differs.
#include <string_view>

#include "runtime/tensor/for_scope.h"

namespace sherd::comm {

/// The text begins with "call ", and is borrowed until the scope ends. Scopes nest; the innermost counts.
class CallPlaceScope {
 public:
  explicit CallPlaceScope(std::string_view place);

 private:
  const ForScope<std::string_view> place_;
};

/// Empty outside of all scopes: the order of calls is that of the group's own numbers.
std::string_view current_place();

}  // namespace sherd::comm
