// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <malloc.h>
#include <net/if.h>

#include "base/system_table.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/link/frame.hpp"
#include "boot/session/made_up_interfaces.hpp"
#include "boot/session/rendezvous.hpp"
#include "boot/session/root_service.hpp"
#include "support/process_state.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

UniqueId some_id(SocketAddress root) {
  UniqueId id;
  id.root = root;
  id.number = 0x0123456789abcdef;
  id.secret = Key::random();
  return id;
}

const SocketAddress kV4 = SocketAddress::ipv4({192, 0, 2, 7}, 4711);
const SocketAddress kV6 =
    SocketAddress::ipv6({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 3, 4711);

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a unique id carries address, port, scope, number and secret in 128 bytes", "[req:1.7]") {
  for (const SocketAddress& root : {kV4, kV6}) {
    const UniqueId id = some_id(root);
    const auto encoded = id.encode();
    static_assert(sizeof encoded == 128);
    const auto decoded = UniqueId::decode(encoded);
    REQUIRE(decoded.ok());
    CHECK(decoded.value().root == root);
    CHECK(decoded.value().number == id.number);
    CHECK(equal_in_constant_time(decoded.value().secret.bytes(), id.secret.bytes()));
  }
  CHECK(kV4.to_string() == "192.0.2.7:4711");
  CHECK(kV6.to_string() == "[fe80::1%3]:4711");
}

TEST_CASE("any changed byte of a unique id is noticed", "[req:1.7]") {
  const auto encoded = some_id(kV4).encode();
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    auto changed = encoded;
    changed[i] ^= std::byte{0x10};
    const auto decoded = UniqueId::decode(changed);
    REQUIRE_FALSE(decoded.ok());
    CHECK(decoded.error().code() == ErrorCode::invalid_argument);
  }
  CHECK_FALSE(UniqueId::decode(UniqueId::Encoded{}).ok());
}

TEST_CASE("addresses that cannot be are refused", "[req:1.7]") {
  const auto decode = [](std::uint8_t family, std::uint16_t port, std::uint32_t scope,
                         std::uint8_t last) {
    Bytes address(16);
    address[15] = std::byte{last};
    ByteWriter writer;
    writer.put(family).put(std::uint8_t{0}).put(port).put(scope).put_raw(address);
    const Bytes bytes = writer.take();
    ByteReader reader(bytes);
    return SocketAddress::decode(reader).ok();
  };
  CHECK(decode(4, 1, 0, 0));
  CHECK(decode(6, 1, 9, 5));
  CHECK_FALSE(decode(5, 1, 0, 0));  // no such family
  CHECK_FALSE(decode(4, 0, 0, 0));  // no port
  CHECK_FALSE(decode(4, 1, 2, 0));  // IPv4 has no scope
  CHECK_FALSE(decode(4, 1, 0, 7));  // IPv4 has four address bytes only
}

namespace {

constexpr unsigned kRuns = IFF_UP | IFF_RUNNING;

SocketAddress link_local(std::uint8_t last, std::uint32_t scope, std::uint16_t port = 0) {
  return SocketAddress::ipv6({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}, scope,
                             port);
}

SocketAddress v4(std::uint8_t last) {
  return SocketAddress::ipv4({192, 0, 2, last}, 0);
}

const MadeUpInterfaces::Entry kLoopbackEntry = {"lo", kRuns | IFF_LOOPBACK,
                                                SocketAddress::ipv4({127, 0, 0, 1}, 0)};

}  // namespace

TEST_CASE("the interface is chosen by name, prefix, exclusion, family and carrier",
          "[req:1.7][req:3.14]") {
  const MadeUpInterfaces host({kLoopbackEntry,
                               {"docker0", kRuns, v4(1)},
                               {"eth0", kRuns, link_local(1, 2)},
                               {"eth1", IFF_UP, v4(2)},   // no carrier
                               {"eth2:0", kRuns, v4(3)},  // an address label is no interface
                               {"eth2", kRuns, v4(4)}});
  struct Row {
    const char* names;
    int family;
    const char* address;  // the first usable address, or a part of the error
    const char* usable;
  };
  const Row rows[] = {{"", AF_UNSPEC, "192.0.2.3:0", "eth2,eth0"},
                      {"", AF_INET, "192.0.2.3:0", "eth2"},
                      {"", AF_INET6, "[fe80::1%2]:0", "eth0"},
                      {"lo", AF_UNSPEC, "127.0.0.1:0", "lo"},
                      {"l", AF_UNSPEC, "127.0.0.1:0", "lo"},  // a prefix
                      {"nosuch,lo", AF_UNSPEC, "127.0.0.1:0", "lo"},
                      {"=lo,docker0", AF_UNSPEC, "127.0.0.1:0", "lo,docker0"},
                      {"^eth2", AF_UNSPEC, "[fe80::1%2]:0", "eth0"},
                      {"=l", AF_UNSPEC, "NCCL_SOCKET_IFNAME, \"=l\"", ""},
                      {"eth1", AF_UNSPEC, "eth1", ""},
                      {"nosuch0", AF_UNSPEC, "docker0", ""}};
  for (const Row& row : rows) {
    CAPTURE(row.names, row.family);
    const SocketOptions options = {.ifname = row.names, .family = row.family};
    const auto usable = usable_interfaces(options);
    const auto chosen = choose_interface(options);
    if (*row.usable != '\0') {
      CHECK(fmt::format("{}", fmt::join(usable.value(), ",")) == row.usable);
      CHECK(chosen.value().to_string() == row.address);
      continue;
    }
    CHECK_FALSE(usable.ok());
    REQUIRE_FALSE(chosen.ok());
    CHECK(chosen.error().code() == ErrorCode::invalid_usage);
    CHECK(contains(chosen.error().message(), row.address));
  }
}

TEST_CASE("whatever interfaces this machine has, one is chosen", "[req:1.7]") {
  CHECK(choose_interface({}).ok());
}

TEST_CASE("a link-local root is dialled through this host's own interface", "[req:1.7]") {
  const MadeUpInterfaces host({kLoopbackEntry,
                               {"eth0", kRuns, v4(1)},
                               {"eth0", kRuns, link_local(1, 2)},
                               {"eth1", kRuns, link_local(5, 3)},
                               {"docker0", kRuns, link_local(9, 4)}});
  const SocketAddress root = link_local(77, 7, 4711);  // interface 7 of another host
  const SocketAddress global =
      SocketAddress::ipv6({0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 0, 4711);
  struct Row {
    SocketAddress remote;
    const char* names;
    std::string seen;
  };
  const Row rows[] = {{root, "", "[fe80::4d%2]:4711"},
                      {root, "eth1", "[fe80::4d%3]:4711"},
                      {root, "=docker0", "[fe80::4d%4]:4711"},
                      // An address of this host stays unchanged, whichever interface is requested.
                      {link_local(5, 3, 4711), "eth0", "[fe80::5%3]:4711"},
                      {kV4, "eth1", kV4.to_string()},
                      {global, "eth1", global.to_string()}};
  for (const Row& row : rows) {
    CHECK(seen_from_here(row.remote, {.ifname = row.names})->to_string() == row.seen);
  }
  const auto none = seen_from_here(root, {.ifname = "lo"});
  REQUIRE_FALSE(none.ok());
  CHECK(contains(none.error().message(), "link-local"));
}

// The address sanitizer replaces operator delete itself.
#if !defined(__SANITIZE_ADDRESS__)

namespace {

// Bytes that operator delete searches for in the memory that this thread frees.
constinit thread_local std::span<const std::byte> sought;
constinit thread_local int times_freed = 0;

void check_and_free(void* memory) noexcept {
  if (memory != nullptr && !sought.empty()) {
    const auto* const bytes = static_cast<const std::byte*>(memory);
    const std::span freed(bytes, ::malloc_usable_size(memory));
    const auto found = std::search(freed.begin(), freed.end(), sought.begin(), sought.end());
    times_freed += found == freed.end() ? 0 : 1;
  }
  std::free(memory);
}

}  // namespace

}  // namespace oriel::boot

void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  oriel::boot::check_and_free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  oriel::boot::check_and_free(memory);
}

namespace oriel::boot {

TEST_CASE("an id that is encoded leaves no copy of its secret in freed memory", "[req:1.8]") {
  UniqueId id;
  id.root = kV4;
  id.number = 7;
  id.secret = Key::random();
  sought = id.secret.bytes();
  times_freed = 0;
  const auto encoded = id.encode();
  const auto decoded = UniqueId::decode(encoded);
  sought = {};
  CHECK(decoded.ok());
  CHECK(times_freed == 0);
}

#endif

TEST_CASE("the root service ends by itself when its ids expire, and starts again", "[req:1.7]") {
  const auto has_thread = [] { return test::has_thread("oriel-root"); };
  const auto first = create_unique_id({.ifname = "lo"}, 100ms);
  const auto second = create_unique_id({.ifname = "lo"}, 150ms);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first.value().root == second.value().root);  // both share one listener
  CHECK(first.value().number != second.value().number);
  CHECK(test::eventually(has_thread));
  CHECK(test::eventually([&] { return !has_thread(); }));
  CHECK(create_unique_id({.ifname = "lo"}, 100ms).ok());
  CHECK(test::eventually(has_thread));
}

TEST_CASE("frames come out of a stream cut anywhere, and bad headers are refused", "[req:1.8]") {
  std::mt19937_64 random(5);
  Bytes stream;
  std::vector<Bytes> payloads;
  for (const std::size_t size : {0U, 1U, 7U, 8U, 9U, 1000U, 70000U}) {
    payloads.emplace_back(size, static_cast<std::byte>(size));
    const Bytes frame = encode_frame(FrameKind::message, payloads.back());
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (int round = 0; round < 50; ++round) {
    FrameReader reader;
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t take = std::min<std::size_t>(stream.size() - at, 1 + random() % 20000);
      REQUIRE(reader.feed(ByteView(stream).subspan(at, take), frames).ok());
      at += take;
    }
    REQUIRE(frames.size() == payloads.size());
    for (std::size_t i = 0; i < frames.size(); ++i) REQUIRE(frames[i].payload == payloads[i]);
  }
  const auto refused = [](std::uint32_t length, std::uint8_t kind, std::uint8_t reserved) {
    ByteWriter writer;
    writer.put(length).put(kind).put(reserved).put(std::uint16_t{0});
    FrameReader reader;
    std::vector<Frame> frames;
    return !reader.feed(writer.take(), frames).ok();
  };
  CHECK(refused(0, 0, 0));
  CHECK(refused(0, 200, 0));
  CHECK(refused(0, 1, 1));
  CHECK(refused(static_cast<std::uint32_t>(kMaxMessageBytes) + 1, 1, 0));
  CHECK(refused(static_cast<std::uint32_t>(kMaxNoticeBytes) + 1, 3, 0));
  CHECK_FALSE(refused(static_cast<std::uint32_t>(kMaxMessageBytes), 1, 0));
}

TEST_CASE("every rank's link neighbours know it as theirs", "[req:1.9]") {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 64, 100, 257}) {
    for (int rank = 0; rank < size; ++rank) {
      for (const int peer : link_neighbours(rank, size)) {
        REQUIRE(peer != rank);
        const auto back = link_neighbours(peer, size);
        REQUIRE(std::find(back.begin(), back.end(), rank) != back.end());
      }
    }
  }
  CHECK(link_neighbours(0, 2) == std::vector<int>{1});
  CHECK(link_neighbours(0, 8) == std::vector<int>{1, 2, 4, 6, 7});
}

namespace {

constexpr std::uint64_t kHere = 42, kElsewhere = 43;
const TimePoint kStart{};

RootHello hello(int rank, int size, std::uint64_t process = kElsewhere) {
  return {.rank = rank, .size = size, .timeout_ms = 1000, .process = process, .address = kV4};
}

/// A rendezvous with its unread frames for each connection.
struct Meeting : Rendezvous {
  explicit Meeting(int complete = 0) : Rendezvous(kHere, Deadline::never()) {
    for (int rank = 0; rank < complete; ++rank) {
      on_hello(static_cast<Connection>(rank), hello(rank, complete), kStart);
    }
    collect();
    text.clear();
    kinds.clear();
  }
  void collect() {
    for (const Outgoing& out : take_outgoing()) {
      text[out.to] +=
          std::string(reinterpret_cast<const char*>(out.frame.data()), out.frame.size());
      kinds[out.to].push_back(static_cast<FrameKind>(out.frame[4]));
    }
  }
  std::string reported(Connection to) {
    collect();
    return std::exchange(text[to], {});
  }
  std::vector<FrameKind> kinds_reported(Connection to) {
    collect();
    return std::exchange(kinds[to], {});
  }
  std::map<Connection, std::string> text;
  std::map<Connection, std::vector<FrameKind>> kinds;
};

using Kinds = std::vector<FrameKind>;

}  // namespace

TEST_CASE("if callers differ in size or share a rank, all callers get the same error",
          "[req:1.38]") {
  struct Row {
    std::vector<std::pair<int, int>> callers;  // rank and size; the second caller conflicts
    const char* words;
    std::size_t finished_after;  // number of callers
  };
  const Row rows[] = {
      {{{0, 4}, {3, 5}, {1, 4}, {2, 4}, {4, 5}},
       "rank 0 joined with size 4, rank 3 with size 5",
       5},
      // The first caller's size does not tell how many will come.
      {{{0, 2}, {1, 4}, {2, 4}, {3, 4}}, "rank 0 joined with size 2, rank 1 with size 4", 4},
      // If callers share a rank, the number of callers to come is unknown.
      {{{1, 3}, {1, 3}, {0, 3}, {1, 3}, {2, 3}}, "two callers joined as rank 1", 99}};
  for (const Row& row : rows) {
    CAPTURE(row.words);
    Meeting meeting;
    for (std::size_t i = 0; i < row.callers.size(); ++i) {
      const auto [rank, size] = row.callers[i];
      meeting.on_hello(i, hello(rank, size), kStart);
      if (i == 1) CHECK(contains(meeting.reported(0), row.words));
      if (i > 0) CHECK(meeting.kinds_reported(i) == Kinds{FrameKind::root_error});
      if (i > 0) CHECK(contains(meeting.reported(i), row.words));
      CHECK(meeting.finished() == (i + 1 == row.finished_after));
    }
    meeting.on_time(kStart + 5s);
    CHECK(meeting.finished());
  }
  Meeting range;
  range.on_hello(30, hello(3, 3), kStart);
  CHECK(contains(range.reported(30), "rank 3 of 3"));
  range.on_hello(31, hello(0, 1), kStart);  // nobody else is affected
  CHECK(range.kinds_reported(31) == Kinds{FrameKind::root_peers});
}

TEST_CASE("the next timer of a rendezvous is the shortest timeout of those not done",
          "[req:1.12]") {
  constexpr int kSize = 200;
  const TimePoint now = kStart;
  std::mt19937 random(7);
  Rendezvous meeting(kHere, Deadline::at(now + 1h));
  CHECK(meeting.next_timer().when() == now + 1h);
  // Several ranks share a timeout, so that a finished rank must not remove another rank's.
  std::map<int, Duration> timeout;
  for (int rank = 0; rank < kSize; ++rank) {
    RootHello one = hello(rank, kSize);
    one.timeout_ms = 1000 + static_cast<std::uint32_t>(random() % 40);
    timeout[rank] = std::chrono::milliseconds(one.timeout_ms);
    meeting.on_hello(static_cast<Rendezvous::Connection>(rank), one, now);
    const auto least = std::min_element(timeout.begin(), timeout.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
    const Duration grace = rank + 1 < kSize ? 0s : Rendezvous::kLinkingGrace;
    REQUIRE(meeting.next_timer().when() == now + least->second + grace);
  }
  while (!timeout.empty()) {
    const auto least = std::min_element(timeout.begin(), timeout.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
    REQUIRE(meeting.next_timer().when() == now + least->second + Rendezvous::kLinkingGrace);
    const auto done = std::next(timeout.begin(), static_cast<long>(random() % timeout.size()));
    for (int times = 0; times < 2; ++times) {  // the second call changes nothing
      meeting.on_done(static_cast<Rendezvous::Connection>(done->first));
    }
    timeout.erase(done);
  }
  CHECK(meeting.next_timer().is_never());
  CHECK(meeting.finished());
}

TEST_CASE("the next timer of a rendezvous takes no longer the more ranks there are", "[req:3.22]") {
  constexpr int kSize = 65536, kTurns = 20'000;
  const TimePoint now{};
  Rendezvous meeting(kHere, Deadline::at(now + 1h));
  for (int rank = 1; rank < kSize; ++rank) {  // one rank is missing
    meeting.on_hello(static_cast<Rendezvous::Connection>(rank), hello(rank, kSize), now);
  }
  static_cast<void>(meeting.take_outgoing());
  const std::clock_t started = std::clock();
  for (int turn = 0; turn < kTurns; ++turn) {
    REQUIRE(meeting.next_timer().when() == now + 1s);
    meeting.on_time(now);
  }
  // Takes about 10 ms; a scan of all ranks at each timer would take half a minute.
  CHECK((std::clock() - started) / CLOCKS_PER_SEC < 3);
}

TEST_CASE("the rendezvous names who is late and who has died, before and after it is complete",
          "[req:1.12]") {
  Meeting late;
  late.on_hello(1, hello(1, 4), kStart);
  late.on_hello(2, hello(2, 4), kStart);
  CHECK(late.next_timer().when() == kStart + 1s);
  late.on_time(kStart + 500ms);
  CHECK(late.reported(1).empty());
  late.on_time(kStart + 1s);
  for (const int to : {1, 2}) {
    CHECK(contains(late.reported(static_cast<Rendezvous::Connection>(to)),
                   "ranks 0, 3 of 4 have not joined in time"));
  }

  Meeting death;
  death.on_hello(0, hello(0, 3, kHere), kStart);
  death.on_hello(1, hello(1, 3), kStart);
  // Rank 0 shares the root service's process, and the others are told.
  CHECK(death.kinds_reported(1) == Kinds{FrameKind::root_host});
  death.on_hello(2, hello(2, 3), kStart);
  CHECK(death.kinds_reported(2) == Kinds{FrameKind::root_host, FrameKind::root_peers});
  static_cast<void>(death.reported(1));
  death.on_done(0);
  death.on_closed(0, kStart);  // no death: rank 0 was done
  CHECK(death.reported(1).empty());
  death.on_closed(2, kStart);
  CHECK(contains(death.reported(1), "rank 2 has died"));

  // If a rank gives up, all ranks receive its reason, whichever rank it blames.
  Meeting blame(3);
  blame.on_gave_up(1, Error(ErrorCode::remote, "rank 2 has died: so rank 1 says").with_origin(2),
                   kStart);
  blame.on_closed(1, kStart);
  CHECK(contains(blame.reported(0), "rank 2 has died: so rank 1 says"));

  Meeting good(3);
  for (Rendezvous::Connection rank = 0; rank < 3; ++rank) {
    CHECK_FALSE(good.finished());
    good.on_done(rank);
  }
  CHECK(good.finished());
}

}  // namespace oriel::boot
