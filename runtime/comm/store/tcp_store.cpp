// The store's client: each step of a call is one asynchronous operation on a private event loop that runs until the
// operation ends or the call's deadline passes. That is how a blocking call gets a deadline with portable sockets.
#include "runtime/comm/store/tcp_store.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <utility>  // before Asio: Boost 1.74 uses std::exchange without including it

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "runtime/comm/store/store_wire.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Stands for a store that serves as many connections as it may: one of them may leave, so it is tried again.
const error_code kFull = asio::error::no_buffer_space;

constexpr milliseconds kAnswerTime{20};  // before that nobody is called silent

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

struct TcpStore::Connection {
  explicit Connection(const TcpStoreOptions& given)
      : options(given), name(fmt::format("store {}:{}", options.host, options.port)) {}

  template <class Start>
  error_code run(Start start, Clock::time_point until);
  void say_if_due(std::string_view what, const std::string& why);
  error_code connect_once(const tcp::resolver::results_type& endpoints, Clock::time_point until);
  error_code authenticate(Clock::time_point until);
  void connect();
  error_code exchange(const wire::RequestHeader& header, std::string_view key, std::string_view value,
                      Clock::time_point until);
  wire::Status call(wire::RequestHeader header, std::string_view key, std::string_view value, milliseconds limit);

  const TcpStoreOptions options;
  const std::string name;
  std::mutex turn;
  Clock::time_point since;                 // of connect()
  NoticeClock notice;                      // until it is connected
  bool is_silent = false;                  // somebody has taken the connection, and says nothing
  std::string lost;                        // why the connection is of no use any more; empty while it is
  wire::Status status = wire::Status::ok;  // of the last reply
  std::string reply;
  asio::io_context io{1};
  tcp::socket socket{io};
};

/// `start(handler)` begins one operation; returns how it ended, `timed_out` (and a closed socket) at the deadline.
template <class Start>
error_code TcpStore::Connection::run(Start start, Clock::time_point until) {
  error_code result = asio::error::would_block;
  start([&result](const error_code& error, const auto&...) { result = error; });
  do {
    io.restart();
    io.run_until(std::min(until, std::max(notice.next(), Clock::now() + kAnswerTime)));
    io.restart();
    io.poll();  // It may be done, and only this thread be late.
    if (result != asio::error::would_block) break;
    say_if_due(is_silent ? "connected, but nothing has answered" : "no connection", "");
  } while (Clock::now() < until);
  if (result != asio::error::would_block) return result;
  error_code ignored;
  socket.close(ignored);
  io.restart();
  io.run();  // The handler refers to this frame, so it must have run before we leave.
  return asio::error::timed_out;
}

void TcpStore::Connection::say_if_due(std::string_view what, const std::string& why) {
  if (options.notice.say && notice.is_due(Clock::now()))
    options.notice.say(
        fmt::format("{}: {} for {:.1f} s{}; still trying; does the process that hosts it run, and is the address "
                    "(SHERD_STORE) right?",
                    name, what, seconds_since(since), why));
}

error_code TcpStore::Connection::connect_once(const tcp::resolver::results_type& endpoints, Clock::time_point until) {
  error_code error = asio::error::host_not_found;
  for (const auto& entry : endpoints) {
    error_code ignored;
    socket.close(ignored);
    socket.open(entry.endpoint().protocol(), error);
    if (error) continue;
    ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    error = run([&](auto done) { socket.async_connect(entry.endpoint(), std::move(done)); }, until);
    if (!error) {
      socket.set_option(tcp::no_delay(true), ignored);
      return error;
    }
  }
  return error;
}

error_code TcpStore::Connection::authenticate(Clock::time_point until) {
  const auto read = [&](void* to, std::size_t size) {
    return run([&](auto done) { asio::async_read(socket, asio::buffer(to, size), std::move(done)); }, until);
  };
  wire::Hello hello{};
  if (const error_code error = read(&hello, sizeof hello)) return error;
  check(std::string_view(hello.magic.data(), hello.magic.size()) == wire::kMagic,
        "{}: what listens there is no store of this version of Sherd; is the address (SHERD_STORE) right?", name);
  if (hello.status == wire::Status::full) return kFull;

  wire::ClientProof proof{};
  const std::string nonce = random_hex(16);
  std::copy(nonce.begin(), nonce.end(), proof.nonce.begin());
  proof.digest = wire::proof(options.secret, "client", hello.nonce, proof.nonce);
  const auto send = asio::buffer(&proof, sizeof proof);
  if (const error_code error = run([&](auto done) { asio::async_write(socket, send, std::move(done)); }, until))
    return error;
  wire::ServerProof other{};
  if (const error_code error = read(&other, sizeof other)) return error;
  if (other.status == wire::Status::full) return kFull;
  const bool known = other.status == wire::Status::ok &&
                     equal_digests(other.digest, wire::proof(options.secret, "server", hello.nonce, proof.nonce));
  check(known, "{}: this rank and the store have different secrets; give all ranks the same SHERD_SECRET", name);
  return {};
}

void TcpStore::Connection::connect() {
  check(options.port > 0 && options.port <= 65535, "{}: port {} is not in 1..65535", name, options.port);
  since = Clock::now();
  const auto until = since + std::clamp(options.connect_deadline, milliseconds(0), wire::kLongestWait);
  error_code error;
  const auto endpoints = tcp::resolver(io).resolve(options.host, std::to_string(options.port), error);
  if (error) throw CommError(fmt::format("{}: the host '{}' is unknown: {}", name, options.host, error.message()));
  check(!options.secret.empty() ||
            std::all_of(endpoints.begin(), endpoints.end(),
                        [](const auto& entry) { return entry.endpoint().address().is_loopback(); }),
        "{}: a store on another host needs a secret; give all ranks the same SHERD_SECRET", name);

  error_code reason = asio::error::timed_out;
  if (options.notice.say) notice = {since, options.notice.after};
  for (milliseconds pause{5};; pause = std::min(2 * pause, milliseconds(100))) {
    is_silent = false;
    error = connect_once(endpoints, until);
    is_silent = !error;
    if (!error) error = authenticate(until);
    if (!error) {
      notice = {};
      return;
    }
    if (error != asio::error::timed_out) reason = error;  // An attempt that our deadline cuts short says nothing new.
    if (Clock::now() + pause >= until) break;
    say_if_due("no connection", fmt::format(" ({})", reason.message()));
    std::this_thread::sleep_for(pause);  // Whoever hosts the store may not have started yet.
  }
  if (reason == kFull)
    throw CommError(
        fmt::format("{}: no connection within {:.3g} s: it serves as many connections as it may; raise its "
                    "max_connections",
                    name, seconds_since(since)));
  if (is_silent && error == asio::error::timed_out)
    throw CommError(
        fmt::format("{}: connected, but nothing has answered within {:.3g} s; is it another program that "
                    "listens there, or is the process that hosts the store stopped?",
                    name, seconds_since(since)));
  throw CommError(
      fmt::format("{}: no connection within {:.3g} s ({}); does the process that hosts it run, and is the "
                  "address right?",
                  name, seconds_since(since), reason.message()));
}

error_code TcpStore::Connection::exchange(const wire::RequestHeader& header, std::string_view key,
                                          std::string_view value, Clock::time_point until) {
  const auto head = encode(header);
  const std::array<asio::const_buffer, 3> request = {asio::buffer(head), asio::buffer(key), asio::buffer(value)};
  std::array<char, wire::ReplyHeader::kSize> bytes;
  if (const error_code error = run([&](auto done) { asio::async_write(socket, request, std::move(done)); }, until))
    return error;
  const auto read = [&](asio::mutable_buffer to) {
    return run([&](auto done) { asio::async_read(socket, to, std::move(done)); }, until);
  };
  if (const error_code error = read(asio::buffer(bytes))) return error;
  const wire::ReplyHeader answer = wire::decode(bytes);
  if (answer.value_size > wire::kMaxValue) return asio::error::message_size;
  status = answer.status;
  reply.resize(answer.value_size);
  return read(asio::buffer(reply));
}

wire::Status TcpStore::Connection::call(wire::RequestHeader header, std::string_view key, std::string_view value,
                                        milliseconds limit) {
  const std::string_view what = wire::kOpNames[static_cast<std::size_t>(header.op)];
  check(!key.empty() && key.size() <= wire::kMaxKey, "{}: {}: the key has {} bytes, allowed are 1 to {}", name, what,
        key.size(), wire::kMaxKey);
  check(value.size() <= wire::kMaxValue, "{}: {} '{}': the value has {} bytes, allowed are {}", name, what, key,
        value.size(), wire::kMaxValue);
  if (!lost.empty()) throw CommError(fmt::format("{}: {} '{}': {}", name, what, key, lost));
  header.key_size = static_cast<std::uint16_t>(key.size());
  header.value_size = static_cast<std::uint32_t>(value.size());
  const auto start = Clock::now();
  if (const error_code error =
          exchange(header, key, value, start + std::min(limit, wire::kLongestWait + options.answer_time))) {
    lost = error == asio::error::timed_out
               ? fmt::format("no answer within {:.3g} s", seconds_since(start))
               : fmt::format("the connection was lost after {:.3g} s ({}): the process that hosts the store has ended",
                             seconds_since(start), error.message());
    error_code ignored;
    socket.close(ignored);
    throw CommError(fmt::format("{}: {} '{}': {}", name, what, key, lost));
  }
  return status;
}

TcpStore::TcpStore(const TcpStoreOptions& options) : connection_(std::make_unique<Connection>(options)) {
  connection_->connect();
}
TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(connection_->turn);
  connection_->call({wire::Op::set, 0, 0, 0}, key, value, connection_->options.call_deadline);
}

std::string TcpStore::get(std::string_view key, milliseconds deadline) {
  const std::lock_guard lock(connection_->turn);
  deadline = std::clamp(deadline, milliseconds(0), wire::kLongestWait);
  const TcpStoreOptions& options = connection_->options;
  const auto status = connection_->call({wire::Op::get, 0, 0, deadline.count()}, key, {},
                                        std::max(deadline + options.answer_time, options.call_deadline));
  if (status != wire::Status::ok)
    throw KeyNotSet(fmt::format("{}: get '{}': no rank set this key within {:.3g} s", connection_->name, key,
                                std::chrono::duration<double>(deadline).count()));
  return std::move(connection_->reply);
}

void TcpStore::erase(std::string_view key) {
  const std::lock_guard lock(connection_->turn);
  connection_->call({wire::Op::erase, 0, 0, 0}, key, {}, connection_->options.call_deadline);
}

void TcpStore::set_at_end(std::string_view key, std::string_view value) {
  const std::lock_guard lock(connection_->turn);
  connection_->call({wire::Op::set_at_end, 0, 0, 0}, key, value, connection_->options.call_deadline);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
  const std::lock_guard lock(connection_->turn);
  const auto status = connection_->call({wire::Op::add, 0, 0, amount}, key, {}, connection_->options.call_deadline);
  const std::optional<std::int64_t> sum = number_of<std::int64_t>(connection_->reply);
  check(status == wire::Status::ok && sum,
        "{}: add '{}': the key holds no integer, or the sum with {} does not fit into 64 bits", connection_->name, key,
        amount);
  return *sum;
}

}  // namespace sherd
