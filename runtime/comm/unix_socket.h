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

namespace sherd::comm {

/// Owns a file descriptor. All of them close on exec.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int number) : number_(number) {}
  Fd(Fd&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

struct Message {
  std::string bytes;
  std::vector<Fd> fds;
};

using SocketTime = std::chrono::steady_clock::time_point;

/// The kernel passes at most this many descriptors in one message.
inline constexpr std::size_t kMaxPassedFds = 253;

/// All of these throw CommError with the system's reason.
Fd listen_abstract(std::string_view name);
Fd connect_abstract(std::string_view name);
/// Takes one waiting connection; empty if there is none or it comes from another user, which is refused.
std::optional<Fd> accept_same_user(const Fd& listener);
bool is_same_user(const Fd& socket);
/// Two connected ends: closing one, also by the death of its process, is seen at the other.
std::pair<Fd, Fd> socket_pair();
bool is_hung_up(const Fd& socket);

void send_message(const Fd& socket, std::string_view bytes, std::span<const int> fds);
/// Waits for one message of at most 4 KiB; empty when the other end has closed. Throws CommError after `until`.
std::optional<Message> receive_message(const Fd& socket, SocketTime until);

/// Sleeps until one of the sockets can be read or has hung up, or `until` has passed.
void wait_readable(std::span<const int> sockets, SocketTime until);

/// `num_bytes` of the system's randomness in hexadecimal.
std::string random_hex(std::size_t num_bytes);

}  // namespace sherd::comm
