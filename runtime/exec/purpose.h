#pragma once
// What a thread of a rank is at, in the words of the program: for messages about ranks that wait. A queue's work keeps
// what its submitter was at.
#include <string_view>

#include "runtime/tensor/for_scope.h"

namespace sherd {

/// The views are literals, names of ops and interned paths.
struct Purpose {
  std::string_view function;  ///< that the program called: "save_checkpoint"; empty outside of all scopes
  std::string_view work;      ///< of a queue: "unshard"; empty on the rank's thread
  std::string_view module;    ///< whose forward queued that work; empty outside of modules
};

/// Names the public function that this thread runs, from construction to destruction. Scopes nest; the outermost
/// counts, as that is what the program called.
class PurposeScope {
 public:
  explicit PurposeScope(const char* function);
  /// The purpose of work which this thread runs now.
  explicit PurposeScope(const Purpose& work);

 private:
  const ForScope<Purpose> scope_;
};

/// Returns that of the calling thread.
const Purpose& current_purpose();

}  // namespace sherd
