#include "runtime/comm/group/subject.h"

#include <utility>

namespace sherd::comm {

namespace {
thread_local constinit std::string_view innermost __attribute__((tls_model("initial-exec"))),
    innermost_part __attribute__((tls_model("initial-exec")));
}  // namespace

SubjectScope::SubjectScope(std::string_view subject, std::string_view part)
    : outer_(std::exchange(innermost, subject)), outer_part_(std::exchange(innermost_part, part)) {}

SubjectScope::~SubjectScope() {
  innermost = outer_;
  innermost_part = outer_part_;
}

std::string_view current_subject() { return innermost; }
std::string_view current_part() { return innermost_part; }

}  // namespace sherd::comm
