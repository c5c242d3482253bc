// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests unauthenticated connections to the root service, to ranks and to an acceptor alone; and
// listeners that do not hold the key.
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <poll.h>
#include <sys/resource.h>

#include "base/try.hpp"
#include "boot/link/acceptor.hpp"
#include "boot/link/tcp.hpp"
#include "boot/session/root_service.hpp"
#include "boot/support/loopback.hpp"
#include "support/descriptor_limit.hpp"
#include "support/fair_timer.hpp"
#include "support/process_state.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

bool is_ready(const OwnedFd& fd, short events, int timeout_ms = 5000) {
  pollfd ready{fd.get(), events, 0};
  return ::poll(&ready, 1, timeout_ms) == 1;
}

/// Returns an established connection to `address`.
OwnedFd connect_to(const SocketAddress& address) {
  auto fd = start_connect(address);
  const bool made = fd.ok() && is_ready(*fd, POLLOUT) && connect_outcome(fd->get(), address).ok();
  return made ? std::move(fd).value() : OwnedFd();
}

void write_bytes(const OwnedFd& fd, ByteView bytes) {
  static_cast<void>(write_some(fd.get(), std::span(&bytes, 1)));
}

/// Reads until the peer closes or `timeout` is over; returns true if the peer closed.
bool closed_within(const OwnedFd& fd, std::chrono::milliseconds timeout,
                   Bytes* received = nullptr) {
  std::array<std::byte, 512> buffer;
  return test::eventually(
      [&] {
        if (!is_ready(fd, POLLIN, 0)) return false;
        const auto got = read_some(fd.get(), buffer);
        if (!got.ok() || got.value().closed) return true;
        if (received == nullptr) return false;
        received->insert(received->end(), buffer.begin(),
                         buffer.begin() + static_cast<std::ptrdiff_t>(got.value().bytes));
        return false;
      },
      timeout);
}

/// Joins as four threads; returns the time taken.
std::chrono::milliseconds join_four(const UniqueId& id) {
  const test::FairTimer timer;
  CHECK(run_threads(4, [&](int rank) { return join_and_barrier(id, rank, 4); }) == all_ok(4));
  return timer.spent();
}

DialTarget target_of(const SocketAddress& address, const Key& key) {
  return {.address = address, .purpose = KeyPurpose::link, .realm = 1, .key = key, .claim = {}};
}

Result<OwnedFd> dial_once(const DialTarget& target, Duration timeout = 5s) {
  auto loop = std::move(EventLoop::create()).value();
  return loop.run(dial(loop, target, {.refused = 1s}, Deadline::after(timeout)));
}

}  // namespace

TEST_CASE("1,000 idle connections and a storm of new ones hold up nobody", "[req:1.8]") {
  const test::DescriptorLimit many(4096);
  const UniqueId id = new_id();
  std::vector<OwnedFd> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(connect_to(id.root));
    REQUIRE(idle.back().valid());
  }
  CHECK(join_four(id) < 2s);
  const UniqueId next = new_id();
  std::atomic<bool> over{false};
  std::jthread storm([&] {
    for (std::size_t i = 0; !over; ++i) idle[i % 600] = connect_to(next.root);
  });
  std::this_thread::sleep_for(50ms);
  CHECK(join_four(next) < 5s);
  over = true;
}

TEST_CASE("web clients, scanners, random, cut and replayed bytes are turned away", "[req:1.8]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const UniqueId id = new_id(), other = new_id();  // `other` keeps the service running
  const auto noise = [&](std::size_t bytes) {
    Bytes made(bytes);
    for (std::byte& byte : made) byte = static_cast<std::byte>(random());
    return made;
  };
  std::vector<OwnedFd> unauthenticated;
  const auto come = [&](ByteView bytes) {
    unauthenticated.push_back(connect_to(id.root));
    write_bytes(unauthenticated.back(), bytes);
  };
  const std::string request = "GET /metrics HTTP/1.1\r\nUser-Agent: " + std::string(100, 'x');
  for (int i = 0; i < 20; ++i) {
    come(std::as_bytes(std::span(request)));
    come(noise(1 + random() % 4000));
    connect_to(id.root);  // connects and closes, like a port scan
  }

  // Sends a valid response that is cut short, then nothing.
  const test::FairTimer timer;
  const OwnedFd half = connect_to(id.root);
  AuthInitiator initiator(KeyPurpose::rendezvous, id.number, target_of(id).key, {0, -1, 0});
  AuthChallenge challenge;
  REQUIRE(is_ready(half, POLLIN));
  REQUIRE(read_some(half.get(), challenge)->bytes == challenge.size());
  const auto response = initiator.respond(challenge);
  REQUIRE(response.ok());
  write_bytes(half, ByteView(response.value()).first(50));

  // Replays the complete response on another connection.
  const OwnedFd replay = connect_to(id.root);
  write_bytes(replay, response.value());
  Bytes answer;
  CHECK(closed_within(replay, 20s, &answer));
  CHECK(answer.size() == AuthSizes::kChallenge + kAuthRefused.size());

  // Ranks that prove the secret and then send garbage.
  for (const std::size_t bytes : {std::size_t{0}, RootHello::kBytes / 2, RootHello::kBytes}) {
    Bytes words = noise(bytes);
    if (bytes > 12) words[12] = std::byte{1};  // nonzero reserved byte: no noise is a valid hello
    unauthenticated.push_back(std::move(dial_once(target_of(id))).value());
    write_bytes(unauthenticated.back(), words);
  }

  CHECK(join_four(id) < 2s);
  CHECK((timer.spent() > 1s || !closed_within(half, 1ms)));
  for (const OwnedFd& peer : unauthenticated) CHECK(closed_within(peer, 20s));
  CHECK(closed_within(half, 20s));  // after its two-second timeout
  RootService::instance().retire(other.number);
}

namespace {

/// Connects to a rank without an existing link.
Status pair_up(EventLoop& loop, Session& session) {
  const int rank = session.rank();
  std::vector<int> pair = {rank, (rank + 5) % 8};
  if (rank % 2 != 0) pair = {(rank + 3) % 8, rank};
  ORIEL_TRY(const auto activity, session.activate(loop, Deadline::after(20s)));
  ORIEL_TRY(Group group, loop.run(session.subgroup(std::move(pair))));
  ORIEL_CHECK(loop.run(group.barrier(Operation::test)));
  return loop.run(session.world().barrier(Operation::test));
}

}  // namespace

TEST_CASE("unauthenticated peers at the ranks' own listeners hold up nobody", "[req:1.8]") {
  const test::DescriptorLimit many(4096);
  const UniqueId id = new_id();
  std::barrier<> joined(9), surrounded(9);
  std::vector<std::string> results;
  std::jthread ranks([&] {
    results = run_threads(8, [&](int rank) {
      return in_session(id, rank, 8, [&](EventLoop& loop, Session& session) {
        joined.arrive_and_wait();
        surrounded.arrive_and_wait();
        return pair_up(loop, session);
      });
    });
  });
  joined.arrive_and_wait();
  auto listeners = listening_addresses();
  std::erase(listeners, id.root);
  CHECK(listeners.size() == 8);
  std::vector<OwnedFd> unauthenticated;
  for (const SocketAddress& listener : listeners) {
    for (int i = 0; i < 125; ++i) unauthenticated.push_back(connect_to(listener));
    write_bytes(unauthenticated.back(), Bytes(4000, std::byte{0xa5}));
  }
  const test::FairTimer timer;
  surrounded.arrive_and_wait();
  ranks.join();
  CHECK(timer.spent() < AcceptorOptions::kLimit);
  CHECK(results == all_ok(8));
}

namespace {

/// Listens, and calls `serve` with each of `times` connections and its number from 0.
class Listens {
 public:
  Listens(int times, const std::function<void(const OwnedFd&, int)>& serve)
      : listener_(std::move(listen_tcp(kAnyPort)).value()), thread_([=, this] {
          for (int i = 0; i < times && is_ready(listener_.fd, POLLIN); ++i) {
            serve(accept_one(listener_.fd.get()).value(), i);
          }
        }) {}
  const SocketAddress& address() const { return listener_.address; }

 private:
  Listener listener_;
  std::jthread thread_;
};

AuthResponse take_response(const OwnedFd& fd) {
  AuthResponse response{};
  if (is_ready(fd, POLLIN, 1000)) static_cast<void>(read_some(fd.get(), response));
  return response;
}

}  // namespace

TEST_CASE("a dialer trusts no listener that does not prove the key", "[req:1.8]") {
  const auto challenge_for = [](KeyPurpose purpose) {
    const AuthResponder responder(purpose);
    return Bytes(responder.challenge().begin(), responder.challenge().end());
  };
  struct Row {
    const char* what;
    Bytes challenge, confirmation;
    ErrorCode code;
  };
  const Bytes challenge = challenge_for(KeyPurpose::link);
  const Bytes made_up(AuthSizes::kConfirmation, std::byte{0x5a});
  const Bytes refusal(kAuthRefused.begin(), kAuthRefused.end());
  const Row rows[] = {{"a MAC that is made up", challenge, made_up, ErrorCode::invalid_argument},
                      {"another protocol", Bytes(AuthSizes::kChallenge, std::byte{'a'}), made_up,
                       ErrorCode::invalid_argument},
                      {"another purpose", challenge_for(KeyPurpose::rendezvous), made_up,
                       ErrorCode::invalid_argument},
                      {"one that refuses ours", challenge, refusal, ErrorCode::invalid_argument},
                      {"no challenge", {}, {}, ErrorCode::timeout},
                      {"no confirmation", challenge, {}, ErrorCode::timeout}};
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const Listens impostor(1, [&](const OwnedFd& fd, int) {
      write_bytes(fd, row.challenge);
      take_response(fd);
      write_bytes(fd, row.confirmation);
      if (row.confirmation != refusal) closed_within(fd, 1s);
    });
    const test::FairTimer timer;
    const auto fd = dial_once(target_of(impostor.address(), Key::random()), 300ms);
    CHECK(timer.spent() < 900ms);
    REQUIRE_FALSE(fd.ok());
    CHECK(fd.error().code() == row.code);
  }
}

TEST_CASE("connections that are closed without a word are made again, however many",
          "[req:1.8][D10]") {
  constexpr int kTimes = 12;
  const Key key = Key::random();
  const Listens crowded(kTimes + 1, [&](const OwnedFd& fd, int i) {
    AuthResponder responder(KeyPurpose::link);
    write_bytes(fd, responder.challenge());
    const auto confirmation =
        responder.answer(take_response(fd), [&](std::uint64_t) { return &key; });
    if (i < kTimes || !confirmation.ok()) return;
    write_bytes(fd, confirmation.value());
    closed_within(fd, 1s);
  });
  const auto fd = dial_once(target_of(crowded.address(), key), 20s);
  CHECK((fd.ok() ? "ok" : fd.error().to_string()) == "ok");
}

namespace {

/// Makes a number of calls of this process fail with ENOBUFS. While `throws` is set, waits throw
/// std::bad_alloc.
class FailingCalls {
 public:
  static inline std::atomic<int> accepts, waits;
  static inline std::atomic<bool> throws;
  explicit FailingCalls(int accepts_to_fail = 0, int waits_to_fail = 0) : scoped_(table()) {
    accepts = accepts_to_fail;
    waits = waits_to_fail;
  }

 private:
  // Static, because the root service's thread may still be in a call when the object is destroyed.
  static const SystemTable& table() {
    static const SystemTable table = [] {
      SystemTable made = real_system_table();
      made.accept4 = [](int fd, sockaddr* address, socklen_t* length, int flags) {
        if (accepts <= 0) return real_system_table().accept4(fd, address, length, flags);
        --accepts;
        errno = ENOBUFS;
        return -1;
      };
      made.epoll_wait = [](int fd, epoll_event* events, int capacity, int timeout_ms) {
        // The root service's thread waits in a poller. A rank does so only at the end of its
        // session, while bytes are unsent.
        const int count = real_system_table().epoll_wait(fd, events, capacity, timeout_ms);
        if (timeout_ms != 0 && throws) throw std::bad_alloc();
        if (timeout_ms == 0 || waits <= 0) return count;
        --waits;
        errno = ENOBUFS;
        return -1;
      };
      return made;
    }();
    return table;
  }
  ScopedSystemTable scoped_;
};

/// Acceptors of a process whose getrlimit() reports `limit` files.
class Listeners {
 public:
  explicit Listeners(rlim_t limit, int count = 1) {
    limit_ = limit;
    table_.getrlimit = [](int resource, rlimit* out) {
      const int status = real_system_table().getrlimit(resource, out);
      out->rlim_cur = limit_;
      return status;
    };
    scoped_.emplace(table_);
    for (int i = 0; i < count; ++i) {
      acceptors_.push_back(std::make_unique<Acceptor>(
          poller_, SteadyClock::instance(), KeyPurpose::link,
          [this](std::uint64_t) { return &key_; },
          [this](AuthenticatedConnection connection) {
            authenticated_.push_back(std::move(connection.fd));
          }));
      addresses_.push_back(acceptors_.back()->listen(kAnyPort).value());
    }
  }
  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  std::size_t authenticated() const { return authenticated_.size(); }
  std::size_t pending() const {
    std::size_t sum = 0;
    for (const auto& acceptor : acceptors_) sum += acceptor->pending();
    return sum;
  }
  void turn() {
    REQUIRE(poller_.poll_once().ok());
    for (const auto& acceptor : acceptors_) acceptor->expire();
    most_ = std::max(most_, pending());
  }
  /// Returns the highest number of unauthenticated connections so far.
  std::size_t most() const { return most_; }
  Dialer caller(std::size_t listener = 0) {
    return std::move(Dialer::start(target_of(addresses_[listener], key_))).value();
  }
  /// Polls until all callers have proved the key; returns "ok", or the error that ended one of
  /// them.
  std::string authenticate(std::vector<Dialer>& callers) {
    Status ended;
    const auto authenticated_or_ended = [&] {
      turn();
      bool all = true;
      for (Dialer& caller : callers) {
        if (Status advanced = caller.advance(); !advanced.ok()) ended = std::move(advanced);
        all = all && caller.authenticated();
      }
      return all || !ended.ok();
    };
    return test::eventually(authenticated_or_ended, 20s) ? text_of(ended) : "stuck";
  }

 private:
  static inline rlim_t limit_;
  SystemTable table_ = real_system_table();
  std::optional<ScopedSystemTable> scoped_;
  const Key key_ = Key::random();
  Poller poller_ = std::move(Poller::create()).value();
  std::vector<OwnedFd> authenticated_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::vector<SocketAddress> addresses_;
  std::size_t most_ = 0;
};

}  // namespace

TEST_CASE("a crowd of honest callers does not drive itself out", "[req:1.8]") {
  Listeners listeners(256);  // an eighth may be unauthenticated
  std::vector<Dialer> callers;
  for (int i = 0; i < 200; ++i) callers.push_back(listeners.caller());
  CHECK(listeners.authenticate(callers) == "ok");
  CHECK(listeners.most() <= 256 / 8);
}

TEST_CASE("idle connections take an eighth of the descriptors at most, the oldest are dropped",
          "[req:1.8]") {
  struct Row {
    rlim_t limit;
    int listeners, idle;
    std::size_t most;
  };
  const Row rows[] = {{4096, 1, 300, Acceptor::kMaxPending},
                      {512, 5, 60, 512 / 8 + 5 * Acceptor::kLeastPending}};
  for (const Row& row : rows) {
    CAPTURE(row.listeners);
    Listeners listeners(row.limit, row.listeners);
    std::vector<OwnedFd> idle;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < row.idle; ++i) {
      for (const SocketAddress& listener : listeners.addresses())
        idle.push_back(connect_to(listener));
      listeners.turn();
    }
    const bool is_kept = !closed_within(idle.front(), 1ms);
    const auto spent = std::chrono::steady_clock::now() - begin;
    CHECK((is_kept || spent > AcceptorOptions::kTurn));  // late on a busy machine
    std::this_thread::sleep_for(AcceptorOptions::kTurn);
    for (int i = 0; i < 10; ++i) listeners.turn();
    CHECK(closed_within(idle.front(), 100ms));
    CHECK_FALSE(closed_within(idle.back(), 50ms));
    // Late callers with the key succeed.
    std::vector<Dialer> late;
    for (std::size_t i = 0; i < listeners.addresses().size(); ++i)
      late.push_back(listeners.caller(i));
    CHECK(listeners.authenticate(late) == "ok");
    CHECK(listeners.authenticated() == late.size());
    CHECK(listeners.most() <= row.most);
    CHECK(listeners.most() >= row.most / 2);
  }
}

TEST_CASE("an accept that fails closes no connection that waits to prove the key",
          "[req:1.8][D10]") {
  Listeners listeners(4096);
  std::vector<Dialer> callers;
  callers.push_back(listeners.caller());
  REQUIRE(test::eventually([&] {
    listeners.turn();
    return listeners.pending() == 1;
  }));
  std::this_thread::sleep_for(AcceptorOptions::kTurn);
  {
    const FailingCalls failing(3);
    const OwnedFd next = connect_to(listeners.addresses().front());
    CHECK(test::eventually([&] {
      listeners.turn();
      return FailingCalls::accepts == 0;
    }));
  }
  CHECK(listeners.authenticate(callers) == "ok");
}

TEST_CASE("a root service whose waits and accepts fail for a while serves all the same",
          "[req:1.38][D10]") {
  const FailingCalls failing(4, 4);
  CHECK(join_four(new_id()) < 5s);
  CHECK(FailingCalls::accepts == 0);
  CHECK(FailingCalls::waits == 0);
}

TEST_CASE("a root service without memory ends its ranks' waits, and can start again",
          "[req:1.38]") {
  const FailingCalls failing;
  const UniqueId id = new_id();
  const test::FairTimer timer;
  const std::jthread shortage([] {
    std::this_thread::sleep_for(100ms);
    FailingCalls::throws = true;
    static_cast<void>(create_unique_id(kLoopback.socket));  // wakes the service
  });
  CHECK(contains(text_of(join_once(id, 0, 2)), "which serves the rendezvous, has died"));
  FailingCalls::throws = false;
  CHECK(timer.spent() < 5s);  // the join timeout is 20 s
  join_four(new_id());
}

}  // namespace oriel::boot
