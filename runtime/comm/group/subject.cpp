#include "runtime/comm/group/subject.h"

namespace sherd::comm {

namespace {
thread_local constinit std::string_view innermost __attribute__((tls_model("initial-exec"))),
    innermost_part __attribute__((tls_model("initial-exec")));
}  // namespace

SubjectScope::SubjectScope(std::string_view subject, std::string_view part)
    : subject_(&innermost, subject), part_(&innermost_part, part) {}

std::string_view current_subject() { return innermost; }
std::string_view current_part() { return innermost_part; }

}  // namespace sherd::comm
