#pragma once
// Small exchanges of text between the ranks of a group, and errors that every rank sees.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Every rank's text, by rank. Collective. No communication of a step: CommCounts do not count it.
std::vector<std::string> gather_text(ProcessGroup& group, std::string_view text);

/// Runs `work` on every rank and waits for all. If it threw an Error on any rank, every rank throws Error with the
/// message of the lowest one ("rank 2: ..." elsewhere), so nobody goes on alone into a collective. Collective; `work`
/// itself must not communicate.
void together(ProcessGroup& group, const std::function<void()>& work);

namespace comm {
/// Whether this thread is in an exchange of texts.
bool is_agreeing();
}  // namespace comm

}  // namespace sherd
