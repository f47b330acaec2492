// The store's server: one thread, one event loop, one coroutine per connection, so no locks. Idea and shape follow
// PyTorch's TCPStore; added are the secret, the limits, and a deadline on everything a peer is expected to do.
//
//   accept_peers --co_spawn--> serve: hello, proof, then { request, answer }*
//
// A get() for a missing key parks its coroutine on a timer that set() and add() cancel; the timer's own end is the
// caller's deadline. A failing peer ends its own coroutine and nothing else.
#include "runtime/comm/store/tcp_store_server.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>  // before Asio: Boost 1.74 uses std::exchange without including it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "runtime/comm/store/store.h"
#include "runtime/comm/store/store_wire.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/no_copy.h"
#include "runtime/tensor/quantity.h"

namespace sherd {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Peer {
  explicit Peer(tcp::socket connected) : socket(std::move(connected)), timer(socket.get_executor()) {}
  tcp::socket socket;
  asio::steady_timer timer;
  std::optional<std::pair<std::string, std::string>> at_end{};  // what is set when the connection is over
};

/// While it lives, the peer has this long; then its socket is closed, which fails whatever waits on it.
class PeerDeadline : NoCopy {
 public:
  PeerDeadline(const std::shared_ptr<Peer>& peer, milliseconds limit) : timer_(peer->timer) {
    timer_.expires_after(limit);
    timer_.async_wait([weak = std::weak_ptr(peer)](const error_code&) {
      // Also called when the deadline was moved; a handler that was already on its way must not close the socket.
      const auto alive = weak.lock();
      error_code ignored;
      if (alive && alive->timer.expiry() <= Clock::now()) alive->socket.close(ignored);
    });
  }
  ~PeerDeadline() {
    try {
      timer_.expires_at(Clock::time_point::max());
    } catch (const boost::system::system_error&) {  // The wait stays: this peer is cut off, no harm to others.
    }
  }

 private:
  asio::steady_timer& timer_;
};

struct Request {
  wire::RequestHeader header;
  std::string key, value;
};
struct Reply {
  wire::Status status;
  std::string value;
};

wire::Nonce make_nonce() {
  const std::string text = random_hex(16);
  wire::Nonce nonce;
  std::copy(text.begin(), text.end(), nonce.begin());
  return nonce;
}

/// Set on every socket of the store: programs that this process starts must not hold its connections open.
void close_on_exec(int socket) { ::fcntl(socket, F_SETFD, FD_CLOEXEC); }

void tune(tcp::socket& socket) {
  close_on_exec(socket.native_handle());
  error_code ignored;  // What the system refuses here costs speed only.
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int idle_seconds = 60, interval_seconds = 10, probes = 6;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof interval_seconds);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

tcp::endpoint resolve(asio::io_context& io, const std::string& host, int port) {
  error_code error;
  if (const auto address = asio::ip::make_address(host, error); !error)
    return {address, static_cast<std::uint16_t>(port)};
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), error);
  check(!error && !found.empty(), "store: the host '{}' to listen on is unknown: {}", host, error.message());
  return found.begin()->endpoint();
}

tcp::acceptor listen(asio::io_context& io, const TcpStoreServerOptions& options) {
  check(options.port >= 0 && options.port <= 65535, "store: port {} is not in 0..65535", options.port);
  const tcp::endpoint endpoint = resolve(io, options.host, options.port);
  check(!options.secret.empty() || endpoint.address().is_loopback(),
        "store: listening on {} without a secret would let anyone in; give a secret (SHERD_SECRET) or use 127.0.0.1",
        options.host);
  tcp::acceptor acceptor(io);
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use)
    fail("store: port {} of {} is in use by another program; choose another port (SHERD_STORE), or 0 for a free one",
         options.port, options.host);
  check(!error, "store: cannot listen on {} port {}: {}", options.host, options.port, error.message());
  close_on_exec(acceptor.native_handle());
  return acceptor;
}

}  // namespace

struct TcpStoreServer::Service {
  explicit Service(const TcpStoreServerOptions& given);
  ~Service();

  awaitable<void> accept_peers();
  void cut_off_oldest();
  awaitable<void> serve(std::shared_ptr<Peer> peer);
  awaitable<bool> authenticate(std::shared_ptr<Peer> peer);
  awaitable<std::optional<Request>> read_request(std::shared_ptr<Peer> peer);
  awaitable<Reply> answer(std::shared_ptr<Peer> peer, Request& request);
  awaitable<Reply> get(std::shared_ptr<Peer> peer, const std::string& key, milliseconds limit);
  Reply add(const std::string& key, std::int64_t amount);
  void set(const std::string& key, std::string value);

  const TcpStoreServerOptions options;
  std::map<std::string, std::string> values;
  std::multimap<std::string, asio::steady_timer*> waiting;  // the parked get() calls by key
  int connections = 0;                                      // that have proved the secret
  // Below what coroutines refer to: the loop's destruction ends those that are suspended.
  asio::io_context io{1};
  std::list<std::shared_ptr<Peer>> unproven;  // the oldest first; their sockets end before the loop
  tcp::acceptor acceptor;
  const int port;
  std::thread thread;
};

TcpStoreServer::Service::Service(const TcpStoreServerOptions& given)
    : options(given), acceptor(listen(io, options)), port(acceptor.local_endpoint().port()) {
  asio::co_spawn(io, accept_peers(), asio::detached);
  // The thread inherits the mask: signals of the process are for its own threads, not for this one.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread([this] { io.run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TcpStoreServer::Service::~Service() {
  io.stop();
  thread.join();
}

awaitable<void> TcpStoreServer::Service::accept_peers() {
  asio::steady_timer pause(io);
  for (;;) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(use_awaitable, error));
    if (!error) {
      tune(socket);
      const auto peer = std::make_shared<Peer>(std::move(socket));
      unproven.push_back(peer);
      cut_off_oldest();
      asio::co_spawn(io, serve(peer), asio::detached);
      continue;
    }
    // Mostly: no free file descriptor. The caller stays in the queue until one is.
    pause.expires_after(milliseconds(50));
    co_await pause.async_wait(use_awaitable);
  }
}

void TcpStoreServer::Service::cut_off_oldest() {
  while (unproven.size() > static_cast<std::size_t>(options.max_unproven)) {
    error_code ignored;
    unproven.front()->socket.close(ignored);  // which fails what waits on it
    unproven.pop_front();
  }
}

awaitable<void> TcpStoreServer::Service::serve(std::shared_ptr<Peer> peer) {
  struct Counted {
    int& count;
    explicit Counted(int& number) : count(++number) {}
    ~Counted() { --count; }
  };
  try {
    const bool known = co_await authenticate(peer);
    unproven.remove(peer);
    if (!known) co_return;
    const Counted counted(connections);
    while (std::optional<Request> request = co_await read_request(peer)) {
      const Reply reply = co_await answer(peer, *request);
      const auto header = encode(wire::ReplyHeader{reply.status, static_cast<std::uint32_t>(reply.value.size())});
      const std::array<asio::const_buffer, 2> buffers = {asio::buffer(header), asio::buffer(reply.value)};
      const PeerDeadline deadline(peer, options.peer_deadline);
      co_await asio::async_write(peer->socket, buffers, use_awaitable);
    }
  } catch (const boost::system::system_error&) {
    // The peer left or was cut off. Its own end of the connection tells it, and others what it has left for them.
    unproven.remove(peer);
  }
  if (peer->at_end) set(peer->at_end->first, std::move(peer->at_end->second));
}

awaitable<bool> TcpStoreServer::Service::authenticate(std::shared_ptr<Peer> peer) {
  const PeerDeadline deadline(peer, options.peer_deadline);
  wire::Hello hello{};
  std::copy(wire::kMagic.begin(), wire::kMagic.end(), hello.magic.begin());
  const auto is_full = [this] { return connections >= options.max_connections; };
  hello.status = is_full() ? wire::Status::full : wire::Status::ok;
  hello.nonce = make_nonce();
  co_await asio::async_write(peer->socket, asio::buffer(&hello, sizeof hello), use_awaitable);
  if (hello.status == wire::Status::full) co_return false;

  wire::ClientProof proof{};
  co_await asio::async_read(peer->socket, asio::buffer(&proof, sizeof proof), use_awaitable);
  const bool known = equal_digests(proof.digest, wire::proof(options.secret, "client", hello.nonce, proof.nonce));
  wire::ServerProof own{};
  own.status = !known ? wire::Status::refused : is_full() ? wire::Status::full : wire::Status::ok;
  if (!known) {  // it may be a stranger, so this is a hint to those who wait, and no reason to end
    error_code ignored;
    const std::string from = peer->socket.remote_endpoint(ignored).address().to_string();
    set(std::string(kStartTrouble),
        fmt::format("a process on {} came to the store with another secret: give all ranks the same SHERD_SECRET",
                    from));
  }
  if (known) own.digest = wire::proof(options.secret, "server", hello.nonce, proof.nonce);
  co_await asio::async_write(peer->socket, asio::buffer(&own, sizeof own), use_awaitable);
  co_return own.status == wire::Status::ok;
}

awaitable<std::optional<Request>> TcpStoreServer::Service::read_request(std::shared_ptr<Peer> peer) {
  // A peer may be idle for as long as it likes; a request that has begun must come in whole.
  std::array<char, wire::RequestHeader::kSize> bytes;
  co_await asio::async_read(peer->socket, asio::buffer(bytes.data(), 1), use_awaitable);
  const PeerDeadline deadline(peer, options.peer_deadline);
  co_await asio::async_read(peer->socket, asio::buffer(bytes.data() + 1, bytes.size() - 1), use_awaitable);
  Request request{wire::decode(bytes), {}, {}};
  const auto& header = request.header;
  const bool known = header.op >= wire::Op::set && header.op <= wire::Op::set_at_end;
  if (!known || header.key_size == 0 || header.key_size > wire::kMaxKey || header.value_size > wire::kMaxValue)
    co_return std::nullopt;
  request.key.resize(header.key_size);
  co_await asio::async_read(peer->socket, asio::buffer(request.key), use_awaitable);
  // Memory by what has come, not by what the header announces.
  constexpr std::size_t kPiece = 4096;
  for (std::size_t at = 0; at < header.value_size; at = request.value.size()) {
    request.value.resize(std::min<std::size_t>(header.value_size, at + std::max(kPiece, at)));
    co_await asio::async_read(peer->socket, asio::buffer(request.value.data() + at, request.value.size() - at),
                              use_awaitable);
  }
  co_return request;
}

awaitable<Reply> TcpStoreServer::Service::answer(std::shared_ptr<Peer> peer, Request& request) {
  const std::int64_t argument = request.header.argument;
  if (request.header.op == wire::Op::add) co_return add(request.key, argument);
  if (request.header.op == wire::Op::get)
    co_return co_await get(peer, request.key,
                           milliseconds(std::clamp<std::int64_t>(argument, 0, wire::kLongestWait.count())));
  if (request.header.op == wire::Op::erase) values.erase(request.key);
  else if (request.header.op == wire::Op::set_at_end) peer->at_end.emplace(request.key, std::move(request.value));
  else set(request.key, std::move(request.value));
  co_return Reply{wire::Status::ok, {}};
}

awaitable<Reply> TcpStoreServer::Service::get(std::shared_ptr<Peer> peer, const std::string& key, milliseconds limit) {
  if (!values.contains(key)) {
    const auto wake = std::make_shared<asio::steady_timer>(io, limit);
    const auto place = waiting.emplace(key, wake.get());
    // A client that waits says nothing, so what can be read is its end: stop waiting on its behalf.
    peer->socket.async_wait(tcp::socket::wait_read, [wake](const error_code& error) {
      if (!error) wake->cancel();
    });
    error_code cancelled;
    co_await wake->async_wait(asio::redirect_error(use_awaitable, cancelled));
    waiting.erase(place);
    peer->socket.cancel(cancelled);
  }
  const auto found = values.find(key);
  if (found == values.end()) co_return Reply{wire::Status::timeout, {}};
  co_return Reply{wire::Status::ok, found->second};
}

Reply TcpStoreServer::Service::add(const std::string& key, std::int64_t amount) {
  const auto found = values.find(key);
  const std::optional<std::int64_t> before = found == values.end() ? 0 : number_of<std::int64_t>(found->second);
  std::int64_t sum = 0;
  if (!before || __builtin_add_overflow(*before, amount, &sum)) return {wire::Status::no_number, {}};
  const std::string text = std::to_string(sum);
  set(key, text);
  return {wire::Status::ok, text};
}

void TcpStoreServer::Service::set(const std::string& key, std::string value) {
  values[key] = std::move(value);
  const auto [begin, end] = waiting.equal_range(key);
  for (auto at = begin; at != end; ++at) at->second->cancel();
}

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options) : service_(std::make_unique<Service>(options)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return service_->port; }

}  // namespace sherd
