#include "runtime/comm/store/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

constexpr std::size_t kMaxMessage = 4096;

[[noreturn]] void fail_system(std::string_view what) {
  throw SocketError(fmt::format("{}: {}", what, std::system_category().message(errno)));
}

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

// An abstract name starts with a zero byte.
Address abstract_address(std::string_view name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  check(name.size() + 1 < sizeof(address.name.sun_path), "socket name of {} bytes is too long", name.size());
  std::ranges::copy(name, address.name.sun_path + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor new_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) fail_system("cannot make a local socket");
  return socket;
}

const sockaddr* generic(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.name); }

std::vector<Descriptor> passed_fds(msghdr& header) {
  std::vector<Descriptor> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (const std::size_t i : up_to(count)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(number);
    }
  }
  return fds;
}

}  // namespace

Descriptor listen_abstract(std::string_view name) {
  const Address address = abstract_address(name);
  Descriptor socket = new_socket();
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) fail_system("cannot set up a local socket");
  if (::bind(socket.get(), generic(address), address.size) != 0) fail_system("cannot bind a local socket");
  if (::listen(socket.get(), static_cast<int>(kMaxPassedFds)) != 0) fail_system("cannot listen on a local socket");
  return socket;
}

Descriptor connect_abstract(std::string_view name) {
  const Address address = abstract_address(name);
  Descriptor socket = new_socket();
  if (::connect(socket.get(), generic(address), address.size) != 0)
    fail_system("cannot connect to the local socket of rank 0");
  return socket;
}

std::optional<Descriptor> accept_same_user(const Descriptor& listener) {
  Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket || !is_same_user(socket)) return std::nullopt;
  return socket;
}

bool is_same_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    fail_system("cannot ask who is at the other end of a local socket");
  return peer.uid == ::geteuid();
}

std::pair<Descriptor, Descriptor> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail_system("cannot make a socket pair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

bool is_hung_up(const Descriptor& socket) {
  pollfd state{.fd = socket.get(), .events = 0, .revents = 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool is_readable(const Descriptor& socket) {
  pollfd state{.fd = socket.get(), .events = POLLIN, .revents = 0};
  return ::poll(&state, 1, 0) > 0;
}

void send_message(const Descriptor& socket, std::string_view bytes, std::span<const int> fds) {
  check(bytes.size() <= kMaxMessage && fds.size() <= kMaxPassedFds,
        "a message of {} bytes and {} descriptors is too large", bytes.size(), fds.size());
  std::string copy(bytes);
  iovec data{.iov_base = copy.data(), .iov_len = copy.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxPassedFds * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  if (::sendmsg(socket.get(), &header, MSG_NOSIGNAL) < 0) fail_system("cannot send on a local socket");
}

std::optional<Message> receive_message(const Descriptor& socket, SocketTime until) {
  for (;;) {
    Message message;
    message.bytes.resize(kMaxMessage);
    iovec data{.iov_base = message.bytes.data(), .iov_len = message.bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxPassedFds * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size >= 0) {
      message.fds = passed_fds(header);
      if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        throw CommError(
            "a message on a local socket is too large, or there are too few file descriptors (see ulimit -n)");
      message.bytes.resize(static_cast<std::size_t>(size));
      if (size == 0) return std::nullopt;
      return message;
    }
    if (errno == ECONNRESET) return std::nullopt;
    if (errno != EAGAIN && errno != EINTR) fail_system("cannot receive on a local socket");
    if (std::chrono::steady_clock::now() >= until) throw CommError("no answer on a local socket before the deadline");
    const int number = socket.get();
    wait_readable(std::span(&number, 1), until);
  }
}

void wait_readable(std::span<const int> sockets, SocketTime until) {
  std::vector<pollfd> states;
  for (const int socket : sockets) states.push_back({.fd = socket, .events = POLLIN, .revents = 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
  const int wait = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  if (::poll(states.data(), states.size(), wait) < 0 && errno != EINTR) fail_system("cannot wait for local sockets");
}

}  // namespace sherd::comm
