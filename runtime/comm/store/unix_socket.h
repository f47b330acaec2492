#pragma once
// Local sockets that carry whole messages and file descriptors. Names are abstract: they vanish with the socket and
// leave nothing in the file system. Only processes of the same user are talked to.
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"

namespace sherd::comm {

struct Message {
  std::string bytes;
  std::vector<Descriptor> fds;
};

using SocketTime = std::chrono::steady_clock::time_point;

/// The kernel passes at most this many descriptors in one message.
inline constexpr std::size_t kMaxPassedFds = 253;

/// A system call has failed, often because the other end has gone: who knows whose it was says so.
class SocketError : public CommError {
 public:
  using CommError::CommError;
};

/// All of these throw SocketError with the system's reason.
Descriptor listen_abstract(std::string_view name);
Descriptor connect_abstract(std::string_view name);
/// Takes one waiting connection; empty if there is none or it comes from another user, which is refused.
std::optional<Descriptor> accept_same_user(const Descriptor& listener);
bool is_same_user(const Descriptor& socket);
/// Two connected ends: closing one, also by the death of its process, is seen at the other.
std::pair<Descriptor, Descriptor> socket_pair();
bool is_hung_up(const Descriptor& socket);
/// Whether receive_message() would not wait: a message has come, or the other end has closed.
bool is_readable(const Descriptor& socket);

void send_message(const Descriptor& socket, std::string_view bytes, std::span<const int> fds);
/// Waits for one message of at most 4 KiB; empty when the other end has closed. Throws CommError after `until`.
std::optional<Message> receive_message(const Descriptor& socket, SocketTime until);

/// Sleeps until one of the sockets can be read or has hung up, or `until` has passed.
void wait_readable(std::span<const int> sockets, SocketTime until);

}  // namespace sherd::comm
