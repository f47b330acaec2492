#include "runtime/comm/group/subject.h"

#include <utility>

namespace sherd::comm {

namespace {
thread_local std::string_view innermost;
}  // namespace

SubjectScope::SubjectScope(std::string_view subject) : outer_(std::exchange(innermost, subject)) {}

SubjectScope::~SubjectScope() { innermost = outer_; }

std::string_view current_subject() { return innermost; }

}  // namespace sherd::comm
