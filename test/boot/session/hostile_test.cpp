// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Strangers at the doors of the root service and of the ranks, and at an acceptor by itself.
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>

#include "base/try.hpp"
#include "boot/link/acceptor.hpp"
#include "boot/link/tcp.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/root_service.hpp"
#include "boot/support/loopback.hpp"
#include "support/fair_timer.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

/// A connection to `address`, established; blocking calls with a deadline of their own.
OwnedFd connect_to(const SocketAddress& address) {
  auto fd = start_connect(address);
  if (!fd.ok()) return OwnedFd();
  pollfd ready{fd.value().get(), POLLOUT, 0};
  if (::poll(&ready, 1, 5000) != 1) return OwnedFd();
  if (!connect_outcome(fd.value().get(), address).ok()) return OwnedFd();
  return std::move(fd).value();
}

void write_bytes(const OwnedFd& fd, ByteView bytes) {
  const auto sent = write_some(fd.get(), std::span(&bytes, 1));
  static_cast<void>(sent);
}

/// Reads until the peer closes or `patience` is over; whether it closed.
bool closed_within(const OwnedFd& fd, std::chrono::milliseconds patience,
                   Bytes* received = nullptr) {
  const auto end = steady_clock::now() + patience;
  std::array<std::byte, 512> buffer;
  while (steady_clock::now() < end) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (::poll(&ready, 1, 20) <= 0) continue;
    const auto got = read_some(fd.get(), buffer);
    if (!got.ok() || got.value().closed) return true;
    if (received == nullptr) continue;
    received->insert(received->end(), buffer.begin(),
                     buffer.begin() + static_cast<std::ptrdiff_t>(got.value().bytes));
  }
  return false;
}

Bytes text(std::string_view words) {
  const auto raw = std::as_bytes(std::span(words));
  return Bytes(raw.begin(), raw.end());
}

/// Joins as four threads; how long it took.
std::chrono::milliseconds join_four(const UniqueId& id) {
  const test::FairTimer timer;
  const auto verdicts = run_threads(4, [&](int rank) { return join_and_barrier(id, rank, 4); });
  const auto spent = timer.spent();
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  return spent;
}

DialTarget target_of(const SocketAddress& address, const Key& key) {
  return {.address = address, .purpose = KeyPurpose::link, .realm = 1, .key = key, .claim = {}};
}

void allow_many_files() {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  if (files.rlim_cur >= 4096) return;
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &files));
}

}  // namespace

TEST_CASE("1,000 idle connections hold up nobody and are closed in time", "[req:1.8]") {
  allow_many_files();
  const UniqueId id = new_id();
  std::vector<OwnedFd> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(connect_to(id.root));
    REQUIRE(idle.back().valid());
  }
  const auto spent = join_four(id);
  WARN("4 ranks joined in " << spent.count() << " ms beside 1,000 idle connections");
  CHECK(spent < 2s);
  // Those who stay silent are closed when their two seconds are over, or earlier in the crush.
  const UniqueId next = new_id();
  const test::FairTimer timer;
  const OwnedFd silent = connect_to(next.root);
  CHECK((!closed_within(silent, 1s) || timer.withheld() > 500ms));
  CHECK(closed_within(silent, 20s));
}

TEST_CASE("a storm of new connections cannot keep ranks from joining", "[req:1.8]") {
  const UniqueId id = new_id();
  std::atomic<bool> over{false};
  std::jthread storm([&] {
    std::vector<OwnedFd> idle(600);
    for (std::size_t i = 0; !over; ++i) idle[i % idle.size()] = connect_to(id.root);
  });
  std::this_thread::sleep_for(50ms);
  const auto spent = join_four(id);
  over = true;
  WARN("4 ranks joined in " << spent.count() << " ms in a storm of connections");
  CHECK(spent < 5s);
}

TEST_CASE("web clients, scanners, random, cut and replayed bytes are turned away", "[req:1.8]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const UniqueId id = new_id();

  std::vector<OwnedFd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(connect_to(id.root));
    write_bytes(strangers.back(), text("GET /metrics HTTP/1.1\r\nHost: oriel\r\nAccept: */*\r\n"
                                       "User-Agent: a scraper with a name that is long enough to "
                                       "fill a response\r\n\r\n"));
    strangers.push_back(connect_to(id.root));
    Bytes noise(1 + random() % 4000);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    write_bytes(strangers.back(), noise);
    connect_to(id.root);  // scanned and gone
  }

  // A proof that is right, but cut short, then silence.
  const OwnedFd half = connect_to(id.root);
  AuthInitiator initiator(KeyPurpose::rendezvous, id.number,
                          Key::derive(id.secret, KeyPurpose::rendezvous, id.number), {0, -1, 0});
  Bytes challenge;
  for (int i = 0; i < 100 && challenge.size() < AuthSizes::kChallenge; ++i) {
    REQUIRE_FALSE(closed_within(half, 10ms, &challenge));
  }
  REQUIRE(challenge.size() == AuthSizes::kChallenge);
  const auto response = initiator.respond(ByteView(challenge).first<AuthSizes::kChallenge>());
  REQUIRE(response.ok());
  write_bytes(half, ByteView(response.value()).first(50));

  // The same proof, whole, on another connection: a replay.
  const OwnedFd replay = connect_to(id.root);
  write_bytes(replay, response.value());
  Bytes answer;
  CHECK(closed_within(replay, 20s, &answer));
  CHECK(answer.size() == AuthSizes::kChallenge);  // no confirmation, nothing else

  CHECK(join_four(id) < 2s);
  for (const OwnedFd& stranger : strangers) CHECK(closed_within(stranger, 20s));
  CHECK(closed_within(half, 20s));
}

namespace {

/// A rank that is honest until it has proved the secret.
OwnedFd proven(const UniqueId& id) {
  auto loop = std::move(EventLoop::create()).value();
  DialTarget target = {.address = id.root,
                       .purpose = KeyPurpose::rendezvous,
                       .realm = id.number,
                       .key = Key::derive(id.secret, KeyPurpose::rendezvous, id.number),
                       .claim = {.from = 0, .to = -1, .tag = 0}};
  auto fd =
      loop.run(dial(loop, std::move(target), {.refused = 1s, .rejected = 1s}, Deadline::after(5s)));
  REQUIRE(fd.ok());
  return std::move(fd).value();
}

}  // namespace

TEST_CASE("hellos that are malformed, cut or missing are dropped, the others join", "[req:1.8]") {
  std::mt19937_64 random(11);
  const UniqueId id = new_id();
  std::vector<OwnedFd> bad;
  bad.push_back(proven(id));  // says nothing
  for (int i = 0; i < 10; ++i) {
    bad.push_back(proven(id));
    Bytes noise(RootHello::kBytes);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    noise[12] = std::byte{1};  // a reserved byte, so that no noise is a hello
    write_bytes(bad.back(), noise);
  }
  bad.push_back(proven(id));
  write_bytes(bad.back(), Bytes(RootHello::kBytes / 2));
  CHECK(join_four(id) < 2s);
  for (const OwnedFd& fd : bad) CHECK(closed_within(fd, 20s));
}

namespace {

/// Where this process listens, but for `root`: at the doors of the ranks among its threads.
std::vector<SocketAddress> doors_of_ranks(const SocketAddress& root) {
  std::vector<SocketAddress> doors;
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    const auto address = local_address(fd);
    if (address.ok() && address->port() != root.port()) doors.push_back(*address);
  }
  return doors;
}

/// Joins, waits for the strangers to come, and connects to a rank that it had no link to.
Status join_and_pair_up(const UniqueId& id, int rank, std::barrier<>& joined,
                        std::barrier<>& surrounded) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  auto session = loop.run(Session::join(loop, id, rank, 8, kLoopback, Deadline::after(20s)));
  joined.arrive_and_wait();
  surrounded.arrive_and_wait();
  if (!session.ok()) return std::move(session).error();
  std::vector<int> pair = {rank, (rank + 5) % 8};
  if (rank % 2 != 0) pair = {(rank + 3) % 8, rank};
  ORIEL_TRY(const auto activity, (*session)->activate(loop, Deadline::after(20s)));
  ORIEL_TRY(Group group, loop.run((*session)->subgroup(std::move(pair))));
  ORIEL_CHECK(loop.run(group.barrier(Operation::test)));
  return loop.run((*session)->world().barrier(Operation::test));
}

}  // namespace

TEST_CASE("strangers at the ranks' own doors hold up nobody", "[req:1.8]") {
  allow_many_files();
  const UniqueId id = new_id();
  std::barrier<> joined(9);
  std::barrier<> surrounded(9);
  std::array<std::string, 8> verdicts;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&, rank] {
      const Status status = join_and_pair_up(id, rank, joined, surrounded);
      verdicts[static_cast<std::size_t>(rank)] = status.ok() ? "ok" : status.error().to_string();
    });
  }
  joined.arrive_and_wait();
  const auto doors = doors_of_ranks(id.root);
  CHECK(doors.size() == 8);
  std::vector<OwnedFd> silent;
  std::vector<OwnedFd> loud;
  for (const SocketAddress& door : doors) {
    for (int i = 0; i < 125; ++i) silent.push_back(connect_to(door));
    loud.push_back(connect_to(door));
    write_bytes(loud.back(), text("GET / HTTP/1.1\r\nHost: a rank of Oriel's\r\nAccept: */*\r\n"
                                  "User-Agent: one that is long enough to fill a response, with "
                                  "some words more\r\n\r\n"));
    loud.push_back(connect_to(door));
    write_bytes(loud.back(), Bytes(4000, std::byte{0xa5}));
    connect_to(door);  // scanned and gone
  }
  const test::FairTimer timer;
  surrounded.arrive_and_wait();
  ranks.clear();
  const auto spent = timer.spent();
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  WARN("8 ranks met in pairs in " << spent.count() << " ms beside 1,000 idle connections");
  CHECK(spent < Acceptor::kProofTime);
  for (const OwnedFd& fd : silent) REQUIRE(fd.valid());
}

namespace {

/// What a dialer comes to at a listener that sends `challenge`, waits for the response, and
/// sends `last`.
Status dial_impostor(const Bytes& challenge, const Bytes& last) {
  auto listener = listen_tcp(SocketAddress::ipv4({127, 0, 0, 1}, 0));
  REQUIRE(listener.ok());
  const std::jthread impostor([&] {
    pollfd waiting{listener->fd.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 5000) != 1) return;
    const auto fd = accept_one(listener->fd.get());
    write_bytes(*fd, challenge);
    std::array<std::byte, AuthSizes::kResponse> response;
    pollfd answered{fd->get(), POLLIN, 0};
    if (::poll(&answered, 1, 1000) != 1 || !read_some(fd->get(), response).ok()) return;
    write_bytes(*fd, last);
    closed_within(*fd, 1s);
  });
  auto loop = std::move(EventLoop::create()).value();
  const test::FairTimer timer;
  auto fd = loop.run(dial(loop, target_of(listener->address, Key::random()),
                          {.refused = 1s, .rejected = 1s}, Deadline::after(500ms)));
  CHECK(timer.spent() < 900ms);
  return fd.ok() ? Status() : std::move(fd).error();
}

}  // namespace

TEST_CASE("a dialer trusts no listener that does not prove the key", "[req:1.8]") {
  const AuthResponder responder(KeyPurpose::link);
  const Bytes challenge(responder.challenge().begin(), responder.challenge().end());
  const Bytes made_up(AuthSizes::kConfirmation, std::byte{0x5a});
  const auto code = [](const Status& status) {
    REQUIRE_FALSE(status.ok());
    return status.error().code();
  };
  CHECK(code(dial_impostor(challenge, made_up)) == ErrorCode::invalid_argument);
  // Another protocol, and another purpose of this one.
  CHECK(code(dial_impostor(Bytes(AuthSizes::kChallenge, std::byte{'a'}), made_up)) ==
        ErrorCode::invalid_argument);
  const AuthResponder other(KeyPurpose::rendezvous);
  CHECK(code(dial_impostor({other.challenge().begin(), other.challenge().end()}, made_up)) ==
        ErrorCode::invalid_argument);
  // Silence before the challenge, and after the response.
  CHECK(code(dial_impostor({}, {})) == ErrorCode::timeout);
  CHECK(code(dial_impostor(challenge, {})) == ErrorCode::timeout);
}

TEST_CASE("a dialer that is put off by a crowded listener comes again", "[req:1.8]") {
  auto listener = listen_tcp(SocketAddress::ipv4({127, 0, 0, 1}, 0));
  REQUIRE(listener.ok());
  const Key key = Key::random();
  constexpr int kTimes = 12;
  std::jthread crowded([&] {
    for (int i = 0; i <= kTimes; ++i) {
      pollfd waiting{listener->fd.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 5000) != 1) return;
      const auto fd = accept_one(listener->fd.get());
      AuthResponder responder(KeyPurpose::link);
      write_bytes(*fd, responder.challenge());
      AuthResponse response;
      pollfd answered{fd->get(), POLLIN, 0};
      if (::poll(&answered, 1, 1000) != 1 || !read_some(fd->get(), response).ok()) return;
      const auto confirmation = responder.answer(response, [&](std::uint64_t) { return &key; });
      if (i < kTimes) {
        write_bytes(*fd, kComeAgain);
      } else if (confirmation.ok()) {
        write_bytes(*fd, confirmation.value());
        closed_within(*fd, 1s);
      }
    }
  });
  auto loop = std::move(EventLoop::create()).value();
  const auto fd = loop.run(dial(loop, target_of(listener->address, key),
                                {.refused = 100ms, .rejected = 100ms}, Deadline::after(20s)));
  CHECK((fd.ok() ? "ok" : fd.error().to_string()) == "ok");
}

namespace {

/// 200 honest callers at once at an acceptor that may have 32 unproven connections.
Status meet_a_crowd() {
  constexpr int kCallers = 200;
  const rlimit files = {512, 512};
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("setrlimit");
  ORIEL_TRY(Poller poller, Poller::create());
  const Key key = Key::random();
  std::vector<OwnedFd> proven;
  Acceptor acceptor(
      poller, SteadyClock::instance(), KeyPurpose::link, [&](std::uint64_t) { return &key; },
      [&](ProvenConnection connection) { proven.push_back(std::move(connection.fd)); });
  ORIEL_TRY(const SocketAddress address, acceptor.listen(SocketAddress::ipv4({127, 0, 0, 1}, 0)));
  std::vector<Dialer> callers;
  for (int i = 0; i < kCallers; ++i) {
    ORIEL_TRY(Dialer caller, Dialer::start(target_of(address, key)));
    callers.push_back(std::move(caller));
  }
  const Deadline deadline = Deadline::after(20s);
  while (proven.size() < kCallers) {
    if (deadline.expired(SteadyClock::instance().now())) return Error(ErrorCode::timeout, "stuck");
    ORIEL_CHECK(poller.poll_once());
    acceptor.expire();
    for (Dialer& caller : callers) ORIEL_CHECK(caller.advance());
  }
  return {};
}

}  // namespace

TEST_CASE("a crowd of honest callers does not drive itself out", "[req:1.8]") {
  CHECK(run_forked(
            1, [](int) { return meet_a_crowd(); }, 30s) == std::vector<std::string>{"ok"});
}

namespace {

struct Doors {
  static constexpr int kCount = 5;
  std::array<SocketAddress, kCount> addresses;
  std::atomic<bool> open{false};
  std::atomic<bool> over{false};
};

/// Five acceptors in a process that may open 1,024 files; an error if it has ever held so many
/// unproven connections that the application would miss the descriptors.
Status keep_doors(Doors& doors, const Key& key) {
  const rlimit files = {1024, 1024};
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("setrlimit");
  ORIEL_TRY(Poller poller, Poller::create());
  std::vector<OwnedFd> proven;
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  for (SocketAddress& address : doors.addresses) {
    acceptors.push_back(std::make_unique<Acceptor>(
        poller, SteadyClock::instance(), KeyPurpose::link, [&](std::uint64_t) { return &key; },
        [&](ProvenConnection connection) { proven.push_back(std::move(connection.fd)); }));
    ORIEL_TRY(address, acceptors.back()->listen(SocketAddress::ipv4({127, 0, 0, 1}, 0)));
  }
  doors.open = true;
  std::size_t most = 0;
  while (!doors.over) {
    ORIEL_CHECK(poller.poll_once());
    std::size_t pending = 0;
    for (const auto& acceptor : acceptors) {
      acceptor->expire();
      pending += acceptor->pending();
    }
    most = std::max(most, pending);
  }
  const std::size_t allowed = 1024 / 8 + Doors::kCount * Acceptor::kLeastPending;
  if (most > allowed || proven.size() != Doors::kCount) {
    return Error(ErrorCode::internal,
                 fmt::format("{} unproven connections at most, {} proven", most, proven.size()));
  }
  return {};
}

}  // namespace

TEST_CASE("idle connections at many doors leave the application its descriptors", "[req:1.8]") {
  allow_many_files();
  const Key key = Key::random();
  const Shared<Doors> doors;
  ForkedRanks keeper(1, [&](int) { return keep_doors(*doors, key); });
  while (!doors->open) std::this_thread::sleep_for(1ms);
  std::vector<OwnedFd> idle;
  for (const SocketAddress& door : doors->addresses) {
    for (int i = 0; i < 260; ++i) idle.push_back(connect_to(door));
  }
  // Who holds the key gets through at each of them.
  auto loop = std::move(EventLoop::create()).value();
  const test::FairTimer timer;
  for (const SocketAddress& door : doors->addresses) {
    CHECK(loop.run(dial(loop, target_of(door, key), {.refused = 1s, .rejected = 1s},
                        Deadline::after(5s)))
              .ok());
  }
  CHECK(timer.spent() < 2s);
  std::this_thread::sleep_for(50ms);
  doors->over = true;
  CHECK(keeper.collect(20s).at(0) == "ok");
}

TEST_CASE("an acceptor keeps at most 256 unproven connections, and drops the oldest", "[req:1.8]") {
  allow_many_files();
  auto poller = std::move(Poller::create()).value();
  int proofs = 0;
  const Key key = Key::random();
  Acceptor acceptor(
      poller, SteadyClock::instance(), KeyPurpose::link, [&](std::uint64_t) { return &key; },
      [&](ProvenConnection) { ++proofs; });
  const auto address = acceptor.listen(SocketAddress::ipv4({127, 0, 0, 1}, 0));
  REQUIRE(address.ok());
  std::vector<OwnedFd> idle;
  const auto turn = [&] {
    REQUIRE(poller.poll_once().ok());
    acceptor.expire();
  };
  for (int i = 0; i < 300; ++i) {
    idle.push_back(connect_to(address.value()));
    turn();
    REQUIRE(acceptor.pending() <= Acceptor::kMaxPending);
  }
  CHECK(acceptor.pending() == Acceptor::kMaxPending);
  CHECK_FALSE(closed_within(idle.front(), 1ms));
  std::this_thread::sleep_for(Acceptor::kTurn);
  for (int i = 0; i < 10; ++i) turn();
  CHECK(acceptor.pending() == Acceptor::kMaxPending);
  CHECK(closed_within(idle.front(), 100ms));
  CHECK_FALSE(closed_within(idle.back(), 50ms));

  // A latecomer with the key gets through all the same.
  auto loop = std::move(EventLoop::create()).value();
  std::atomic<bool> done{false};
  std::jthread turning([&] {
    while (!done) {
      static_cast<void>(poller.poll_once());
      acceptor.expire();
    }
  });
  const auto fd = loop.run(
      dial(loop, target_of(*address, key), {.refused = 1s, .rejected = 1s}, Deadline::after(5s)));
  CHECK(fd.ok());
  done = true;
  turning.join();
  CHECK(proofs == 1);
}

}  // namespace oriel::boot
