// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/exchange/fd_exchange.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "support/process_state.hpp"
#include "window/exchange/send_descriptors.hpp"
#include "window/memory/memory_host.hpp"

namespace oriel::window {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRealm = 77;
constexpr std::uint64_t kTag = 5;

const boot::Key& secret() {
  static const boot::Key key = boot::Key::random();
  return key;
}

/// Fails a test that leaves file descriptors open.
struct NoneLeft {
  ~NoneLeft() { CHECK(test::count_fds() == before); }
  std::size_t before = test::count_fds();
};

using Arrived = Result<std::vector<std::vector<OwnedFd>>>;

void require_all(const std::vector<Status>& outcomes) {
  for (const Status& status : outcomes) {
    INFO((status.ok() ? "" : status.error().to_string()));
    REQUIRE(status.ok());
  }
}

/// Runs the exchanges of `count` processes in one loop; process i is rank 10 + i.
class Peers {
 public:
  explicit Peers(int count, const boot::Key& key_of_last = secret(),
                 std::vector<std::vector<bool>> linked = {}) {
    linked.resize(static_cast<std::size_t>(count));
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(10 + i);
    for (int i = 0; i < count; ++i) {
      all_.push_back(std::make_unique<FdExchange>(i + 1 == count ? key_of_last : secret(), kRealm,
                                                  kTag, ranks, i, linked[all_.size()]));
    }
    for (const auto& one : all_) {
      auto name = one->listen();
      REQUIRE(name.ok());
      names.push_back(name.value());
    }
  }

  FdExchange& operator[](std::size_t i) { return *all_[i]; }
  std::size_t size() const { return all_.size(); }

  std::vector<Status> dial() {
    return each([&](FdExchange& one) { return one.dial(loop, names, Deadline::after(5s)); });
  }
  std::vector<Status> authenticate(Duration timeout = 5s) {
    return each([&](FdExchange& one) { return one.authenticate(loop, Deadline::after(timeout)); });
  }
  /// Runs authenticate() and checks that it ends long before its deadline.
  std::vector<Status> refuse() {
    const auto begin = SteadyClock::instance().now();
    auto outcomes = authenticate(30s);
    CHECK(SteadyClock::instance().now() - begin < 15s);
    return outcomes;
  }
  void connect() {
    require_all(dial());
    require_all(authenticate());
  }
  void forget(std::size_t i) { all_[i]->disconnect(); }

  EventLoop loop = std::move(EventLoop::create()).value();
  std::vector<FdSocketName> names;

 private:
  template <typename Make>
  std::vector<Status> each(Make make) {
    std::vector<Task<Status>> tasks;
    for (const auto& one : all_) tasks.push_back(make(*one));
    return loop.run_all(std::move(tasks));
  }
  std::vector<std::unique_ptr<FdExchange>> all_;
};

OwnedFd memfd(std::size_t bytes) {
  OwnedFd fd(::memfd_create("oriel-test", MFD_CLOEXEC));
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}

std::vector<OwnedFd> memfds(std::size_t count, std::size_t first_bytes) {
  std::vector<OwnedFd> fds;
  for (std::size_t i = 0; i < count; ++i) fds.push_back(memfd(first_bytes + i));
  return fds;
}

std::size_t size_of_file(const OwnedFd& fd) {
  struct stat info {};
  REQUIRE(::fstat(fd.get(), &info) == 0);
  return static_cast<std::size_t>(info.st_size);
}

/// A peer with a hand-written protocol: rank 11 towards the listener of rank 10.
class Hostile {
 public:
  explicit Hostile(const FdSocketName& name) : socket_(connect_to(name).value()) {
    REQUIRE(socket_.valid());
  }

  /// Runs the handshake; called by a thread beside the loop.
  void authenticate() {
    boot::AuthInitiator initiator(boot::KeyPurpose::fd_exchange, kRealm, secret(), {11, 10, kTag});
    boot::AuthChallenge challenge{};
    receive(challenge);
    const auto response = initiator.respond(challenge);
    send(ByteView(response.value()), {});
    boot::AuthConfirmation confirmation{};
    receive(confirmation);
  }

  void send(ByteView bytes, const std::vector<int>& fds) {
    send_with_descriptors(socket_.get(), bytes, fds);
  }

  void send_header(std::uint16_t type, std::uint16_t count, std::uint32_t total,
                   const std::vector<int>& fds, std::uint64_t sequence = 1) {
    ByteWriter writer;
    writer.put(std::uint32_t{0x4446524f}).put(type).put(count).put(sequence);
    writer.put(std::uint32_t{0}).put(total);
    const Bytes bytes = writer.take();
    send(bytes, fds);
  }
  void close() { socket_.reset(); }

 private:
  template <std::size_t N>
  void receive(std::array<std::byte, N>& into) {
    pollfd ready{socket_.get(), POLLIN, 0};
    static_cast<void>(::poll(&ready, 1, 5000));
    static_cast<void>(::recv(socket_.get(), into.data(), into.size(), 0));
  }
  OwnedFd socket_;
};

/// Returns the outcome of rank 10 in a pair. Rank 10 expects `expected` descriptors; rank 11
/// completes the handshake and then runs `attack`.
std::string outcome(std::size_t expected, Duration timeout,
                    const std::function<void(Hostile&)>& attack) {
  auto loop = std::move(EventLoop::create()).value();
  FdExchange victim(secret(), kRealm, kTag, {10, 11}, 0);
  const auto name = victim.listen();
  Hostile hostile(name.value());
  {
    std::jthread authenticator([&] { hostile.authenticate(); });
    REQUIRE(loop.run(victim.authenticate(loop, Deadline::after(5s))).ok());
  }
  attack(hostile);
  auto result = loop.run(victim.exchange(loop, {}, {0, expected}, Deadline::after(timeout)));
  if (result.ok()) return "ok";
  CHECK_FALSE(victim.connected());
  CHECK(result.error().origin_rank() == 11);
  return result.error().to_string();
}

}  // namespace

TEST_CASE("descriptors travel between all processes, 64 a message", "[req:1.17]") {
  const NoneLeft none_left;
  Peers peers(4);
  peers.connect();
  // Repeats the exchange over the same sockets.
  for (const std::vector<std::size_t>& counts :
       {std::vector<std::size_t>{0, 65, 64, 200}, std::vector<std::size_t>{3, 0, 1, 0}}) {
    std::vector<Task<Arrived>> tasks;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      tasks.push_back(peers[i].exchange(peers.loop, memfds(counts[i], counts[0] + 1000 * i), counts,
                                        Deadline::after(10s)));
    }
    const auto results = peers.loop.run_all(std::move(tasks));
    for (std::size_t i = 0; i < peers.size(); ++i) {
      REQUIRE(results[i].ok());
      for (std::size_t from = 0; from < peers.size(); ++from) {
        const auto& fds = results[i].value()[from];
        REQUIRE(fds.size() == (from == i ? 0 : counts[from]));
        for (std::size_t k = 0; k < fds.size(); ++k) {
          CHECK(size_of_file(fds[k]) == counts[0] + 1000 * from + k);
          CHECK((::fcntl(fds[k].get(), F_GETFD) & FD_CLOEXEC) != 0);
        }
      }
    }
  }
}

namespace {

/// Delays the handshake of one peer, like a process that is not scheduled.
Task<Status> authenticate_later(FdExchange& one, EventLoop& loop, Duration delay) {
  ORIEL_CO_CHECK(co_await loop.sleep_until(Deadline::after(delay)));
  co_return co_await one.authenticate(loop, Deadline::after(20s));
}

}  // namespace

// The tests of boot cover an acceptor's reactions to unauthenticated peers. Here unauthenticated
// peers fill the queue of a unix socket, and every honest connection must still be accepted.
TEST_CASE(
    "hundreds of silent, talking or gone connections before and behind honest ones do not "
    "disturb them",
    "[req:1.8][req:1.17]") {
  const NoneLeft none_left;
  Peers peers(3);
  std::vector<OwnedFd> unauthenticated;
  const auto add_unauthenticated = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      unauthenticated.push_back(connect_to(peers.names[0]).value());
      REQUIRE(unauthenticated.back().valid());
      if (i % 8 == 1) static_cast<void>(send_packet(unauthenticated.back().get(), Bytes(i)));
      if (i % 8 == 2) unauthenticated.back().reset();
    }
  };
  add_unauthenticated(400);  // more silent ones than an acceptor keeps at once
  static_cast<void>(send_packet(unauthenticated[0].get(), Bytes(boot::AuthSizes::kResponse)));
  require_all(peers.dial());
  add_unauthenticated(100);
  std::vector<Task<Status>> tasks;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    tasks.push_back(authenticate_later(peers[i], peers.loop, i == 0 ? 0ms : 200ms));
  }
  require_all(peers.loop.run_all(std::move(tasks)));
}

TEST_CASE("a shortage of descriptors while unauthenticated peers are connected passes",
          "[req:1.8][req:1.17]") {
  const NoneLeft none_left;
  Peers peers(2);
  std::vector<OwnedFd> idle;
  for (int i = 0; i < 6; ++i) idle.push_back(connect_to(peers.names[0]).value());
  require_all(peers.dial());
  // accept4() yields five connections, then EMFILE; the honest one is the seventh.
  static std::vector<int> accepted;
  accepted.clear();
  SystemTable table = real_system_table();
  table.accept4 = [](int fd, sockaddr* address, socklen_t* length, int flags) {
    if (accepted.size() == 5) {
      errno = EMFILE;
      return -1;
    }
    const int made = real_system_table().accept4(fd, address, length, flags);
    if (made >= 0) accepted.push_back(made);
    return made;
  };
  table.close = [](int fd) {
    std::erase(accepted, fd);
    return real_system_table().close(fd);
  };
  const ScopedSystemTable scoped(table);
  require_all(peers.authenticate(20s));
}

TEST_CASE("no descriptor of a peer that has proved nothing enters this process", "[req:1.17]") {
  const NoneLeft none_left;
  Peers peers(2);
  const OwnedFd file = memfd(4096);
  std::vector<std::unique_ptr<Hostile>> unauthenticated;
  const std::vector<int> full(64, file.get());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, boot::AuthSizes::kResponse}) {
    unauthenticated.push_back(std::make_unique<Hostile>(peers.names[0]));
    unauthenticated.back()->send(Bytes(bytes), full);
  }
  // No received descriptor may be open even for a moment.
  require_all(peers.dial());
  static std::size_t most = 0;
  most = 0;
  SystemTable table = real_system_table();
  table.recvmsg = [](int fd, msghdr* message, int flags) {
    const ssize_t got = real_system_table().recvmsg(fd, message, flags);
    most = std::max(most, test::count_fds());
    return got;
  };
  const ScopedSystemTable scoped(table);
  const auto open = test::count_fds();
  require_all(peers.authenticate());
  CHECK(most <= open + unauthenticated.size() + 3);  // the accepted sockets and the pollers
  unauthenticated.clear();
}

TEST_CASE("a process with another secret is refused by both sides, at once", "[req:1.17]") {
  const NoneLeft none_left;
  const boot::Key foreign = boot::Key::random();
  Peers peers(3, foreign);
  require_all(peers.dial());
  const auto outcomes = peers.refuse();
  REQUIRE_FALSE(outcomes[0].ok());
  CHECK(outcomes[0].error().origin_rank() == 12);
  REQUIRE_FALSE(outcomes[1].ok());
  CHECK_FALSE(outcomes[2].ok());
}

namespace {

/// Makes the peers of all unix sockets belong to another user, for the object's lifetime.
class OtherUser {
 public:
  OtherUser() {
    table_.getsockopt = [](int fd, int level, int name, void* value, socklen_t* length) {
      const int status = real_system_table().getsockopt(fd, level, name, value, length);
      if (status == 0 && level == SOL_SOCKET && name == SO_PEERCRED) {
        static_cast<ucred*>(value)->uid += 1;
      }
      return status;
    };
    scoped_.emplace(table_);
  }

 private:
  SystemTable table_ = real_system_table();
  std::optional<ScopedSystemTable> scoped_;
};

TEST_CASE("descriptors for a peer travel only between those that are linked", "[req:3.9]") {
  Peers peers(3, secret(), {{false, true, false}, {true, false, true}, {false, true, false}});
  peers.connect();
  std::vector<Task<Arrived>> tasks;
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<std::vector<OwnedFd>> mine(3);
    for (std::size_t to = 1 - i % 2; to < 3; to += 2) mine[to] = memfds(1, 10 * i + to + 1);
    tasks.push_back(peers[i].exchange_each(peers.loop, std::move(mine), {i % 2, 1 - i % 2, i % 2},
                                           Deadline::after(5s)));
  }
  const auto results = peers.loop.run_all(std::move(tasks));
  for (std::size_t i = 0; i < 9; ++i) {
    const auto& fds = results[i / 3].value()[i % 3];
    REQUIRE(fds.size() == (i / 3 + i % 3) % 2);
    if (!fds.empty()) CHECK(size_of_file(fds[0]) == 10 * (i % 3) + i / 3 + 1);
  }
}

}  // namespace

TEST_CASE("a listener of another user is refused before anything is sent to it", "[req:1.17]") {
  const NoneLeft none_left;
  Peers peers(2);
  std::vector<Status> outcomes;
  {
    const OtherUser other;
    outcomes = peers.dial();
  }
  CHECK(outcomes[0].ok());  // rank 10 dials nobody
  REQUIRE_FALSE(outcomes[1].ok());
  CHECK(outcomes[1].error().code() == ErrorCode::remote);
  CHECK_THAT(outcomes[1].error().to_string(),
             Catch::Contains("connecting to rank 10") &&
                 Catch::Contains("another user listens at the peer's socket"));
  require_all(peers.dial());  // succeeds without the other user
}

TEST_CASE("a connection of another user is closed without a word", "[req:1.17]") {
  const NoneLeft none_left;
  Peers peers(2);
  require_all(peers.dial());
  const OtherUser other;
  const auto outcomes = peers.refuse();
  REQUIRE_FALSE(outcomes[0].ok());
  REQUIRE_FALSE(outcomes[1].ok());
  CHECK_THAT(outcomes[0].error().to_string(), Catch::Contains("missing: rank 11"));
  CHECK(outcomes[0].error().origin_rank() == 11);
  CHECK_THAT(outcomes[1].error().to_string(), Catch::Contains("rank 10 closed its connection"));
}

TEST_CASE("a process that goes away while connecting is noticed at once and named", "[req:1.17]") {
  const NoneLeft none_left;
  Peers peers(3);
  require_all(peers.dial());
  peers.forget(2);
  std::vector<Task<Status>> tasks;
  tasks.push_back(peers[0].authenticate(peers.loop, Deadline::after(20s)));
  tasks.push_back(peers[1].authenticate(peers.loop, Deadline::after(20s)));
  const auto begin = SteadyClock::instance().now();
  const auto outcomes = peers.loop.run_all(std::move(tasks));
  CHECK(SteadyClock::instance().now() - begin < 10s);
  for (const Status& status : outcomes) REQUIRE_FALSE(status.ok());
  // Rank 10 sees rank 12 leave, or first rank 11, which leaves because of rank 12.
  CHECK(outcomes[0].error().origin_rank() >= 11);
}

TEST_CASE("authentication with a listener that sends nothing times out and names its rank",
          "[req:1.17]") {
  const NoneLeft none_left;
  Peers peers(2);
  require_all(peers.dial());
  const auto status = peers.loop.run(peers[1].authenticate(peers.loop, Deadline::after(100ms)));
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code() == ErrorCode::timeout);
  CHECK(status.error().origin_rank() == 10);
}

TEST_CASE("an authenticated peer that breaks the protocol is refused", "[req:1.17]") {
  const NoneLeft none_left;
  const OwnedFd file = memfd(4096);
  const std::vector<int> one = {file.get()};
  const std::vector<int> two(2, file.get()), many(253, file.get()), full(64, file.get());
  const auto refused = [](std::size_t expected, const auto& attack) {
    CHECK_THAT(outcome(expected, 5s, attack),
               Catch::Contains("rank 11") && !Catch::Contains("no answer in time"));
  };
  CHECK(outcome(1, 5s, [&](Hostile& peer) { peer.send_header(1, 1, 1, one); }) == "ok");
  refused(1, [&](Hostile& peer) { peer.send_header(1, 1, 1, {}); });
  refused(1, [&](Hostile& peer) { peer.send_header(1, 1, 1, two); });
  refused(1, [&](Hostile& peer) { peer.send_header(1, 1, 1, many); });
  refused(64, [&](Hostile& peer) { peer.send_header(1, 64, 64, many); });
  refused(65, [&](Hostile& peer) {
    peer.send_header(1, 64, 65, full);
    peer.send_header(1, 64, 65, full);
  });
  refused(1, [&](Hostile& peer) { peer.send_header(1, 1, 2, one); });
  refused(1, [&](Hostile& peer) { peer.send_header(1, 1, 1, one, 2); });
  refused(1, [&](Hostile& peer) { peer.send_header(2, 0, 0, {}); });
  refused(1, [&](Hostile& peer) { peer.send_header(2, 0, 0, one); });
  refused(1, [&](Hostile& peer) { peer.send_header(9, 1, 1, one); });
  refused(1, [&](Hostile& peer) { peer.send(Bytes(), {}); });
  refused(1, [&](Hostile& peer) { peer.send(Bytes(), one); });
  refused(64, [&](Hostile& peer) { peer.send(Bytes(), full); });
  refused(1, [&](Hostile& peer) { peer.send(Bytes(23), one); });
  refused(1, [&](Hostile& peer) { peer.send(Bytes(24), one); });
  refused(1, [&](Hostile& peer) { peer.send(Bytes(5000), one); });
  refused(1, [&](Hostile& peer) { peer.close(); });
  CHECK_THAT(outcome(1, 100ms, [](Hostile&) {}), Catch::Contains("no answer in time from rank 11"));
}

}  // namespace oriel::window
