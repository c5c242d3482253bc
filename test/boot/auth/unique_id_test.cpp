// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <ifaddrs.h>
#include <malloc.h>
#include <net/if.h>

#include "base/system_table.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/link/frame.hpp"
#include "boot/session/made_up_interfaces.hpp"
#include "boot/session/rendezvous.hpp"
#include "boot/session/root_service.hpp"

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
    ByteWriter writer;
    writer.put(family).put(std::uint8_t{0}).put(port).put(scope);
    Bytes address(16);
    address[15] = std::byte{last};
    writer.put_raw(address);
    const Bytes bytes = writer.take();
    ByteReader reader(bytes);
    return SocketAddress::decode(reader).ok();
  };
  CHECK(decode(4, 1, 0, 0));
  CHECK(decode(6, 1, 9, 5));
  CHECK_FALSE(decode(5, 1, 0, 0));  // no such family
  CHECK_FALSE(decode(4, 0, 0, 0));  // no port
  CHECK_FALSE(decode(4, 1, 2, 0));  // IPv4 has no scope
  CHECK_FALSE(decode(4, 1, 0, 7));  // and only four bytes
}

TEST_CASE("the interface is chosen by name, prefix, exclusion and family", "[req:1.7]") {
  const auto choose = [](const char* names, int family = AF_UNSPEC) {
    return choose_interface({.ifname = names, .family = family});
  };
  REQUIRE(choose("lo").ok());
  CHECK(choose("lo").value().is_loopback());
  CHECK(choose("=lo").value().is_loopback());
  CHECK(choose("nosuch,lo").value().is_loopback());
  CHECK_FALSE(choose("=l").ok());
  CHECK(choose("l").ok());  // a prefix
  const auto excluded = choose("^lo");
  if (excluded.ok()) CHECK_FALSE(excluded.value().is_loopback());
  const auto missing = choose("nosuch0");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().code() == ErrorCode::invalid_usage);
  CHECK(missing.error().message().find("NCCL_SOCKET_IFNAME, \"nosuch0\"") != std::string::npos);
  CHECK(missing.error().message().find("lo") != std::string::npos);
  REQUIRE(choose("lo", AF_INET).ok());
  CHECK(choose("lo", AF_INET).value().family() == AF_INET);
  // Whatever this machine has, something is found without being asked for.
  CHECK(choose("").ok());
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

}  // namespace

TEST_CASE("an interface without carrier is not chosen", "[req:1.7]") {
  const MadeUpInterfaces host(
      {{"lo", IFF_UP | IFF_LOOPBACK, SocketAddress::ipv4({127, 0, 0, 1}, 0)},
       {"eth0", IFF_UP, v4(1)},
       {"eth1", kRuns, v4(2)}});
  const auto chosen = choose_interface({});
  REQUIRE(chosen.ok());
  CHECK(chosen.value() == v4(2));
  CHECK(choose_interface({.ifname = "lo"}).ok());  // needs none
  const auto down = choose_interface({.ifname = "eth0"});
  REQUIRE_FALSE(down.ok());
  CHECK(down.error().message().find("eth0") != std::string::npos);
}

TEST_CASE("the interfaces that can be used begin with the one that is chosen", "[req:3.14]") {
  const MadeUpInterfaces host({{"lo", kRuns | IFF_LOOPBACK, SocketAddress::ipv4({127, 0, 0, 1}, 0)},
                               {"docker0", kRuns, v4(1)},
                               {"eth0", kRuns, link_local(1, 2)},
                               {"eth1", IFF_UP, v4(2)},
                               {"eth2", kRuns, v4(3)},
                               {"eth2", kRuns, v4(4)}});
  using Names = std::vector<std::string>;
  CHECK(usable_interfaces({}).value() == Names{"eth2", "eth0"});
  CHECK(usable_interfaces({.ifname = "^eth2"}).value() == Names{"eth0"});
  CHECK(usable_interfaces({.ifname = "=lo,docker0"}).value() == Names{"lo", "docker0"});
  CHECK(usable_interfaces({.family = AF_INET}).value() == Names{"eth2"});
  CHECK_FALSE(usable_interfaces({.ifname = "eth1"}).ok());
  // A label of an address is no interface.
  const MadeUpInterfaces labels(
      {{"eth0:0", kRuns, v4(1)}, {"eth0", kRuns, v4(2)}, {"eth1:a", kRuns, v4(3)}});
  CHECK(usable_interfaces({}).value() == Names{"eth0", "eth1"});
}

TEST_CASE("a link-local root is dialled through this host's own interface", "[req:1.7]") {
  const MadeUpInterfaces host({{"lo", kRuns | IFF_LOOPBACK, SocketAddress::ipv4({127, 0, 0, 1}, 0)},
                               {"eth0", kRuns, v4(1)},
                               {"eth0", kRuns, link_local(1, 2)},
                               {"eth1", kRuns, link_local(5, 3)},
                               {"docker0", kRuns, link_local(9, 4)}});
  // Interface 7 of another host.
  const SocketAddress root = link_local(77, 7, 4711);
  const auto seen = [&](const SocketAddress& remote, const char* names) {
    const auto result = seen_from_here(remote, {.ifname = names});
    return result.ok() ? result.value().to_string() : result.error().message();
  };
  CHECK(seen(root, "") == "[fe80::4d%2]:4711");
  CHECK(seen(root, "eth1") == "[fe80::4d%3]:4711");
  CHECK(seen(root, "=docker0") == "[fe80::4d%4]:4711");
  CHECK(seen(root, "lo").find("link-local") != std::string::npos);
  // This host's own stays what it is, whichever interface is asked for.
  CHECK(seen(link_local(5, 3, 4711), "eth0") == "[fe80::5%3]:4711");
  // Nothing else is touched.
  CHECK(seen(kV4, "eth1") == kV4.to_string());
  const SocketAddress global =
      SocketAddress::ipv6({0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 0, 4711);
  CHECK(seen(global, "eth1") == global.to_string());
}

// The address sanitizer has an operator delete of its own.
#if !defined(__SANITIZE_ADDRESS__)

namespace {

// What the operator delete of this program looks for in what this thread frees.
constinit thread_local std::span<const std::byte> sought;
constinit thread_local int times_freed = 0;

void free_after_a_look(void* memory) noexcept {
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
  oriel::boot::free_after_a_look(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  oriel::boot::free_after_a_look(memory);
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

TEST_CASE("the root service ends by itself when its ids expire", "[req:1.7]") {
  {
    const auto first = create_unique_id({.ifname = "lo"}, 50ms);
    const auto second = create_unique_id({.ifname = "lo"}, 100ms);
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    CHECK(first.value().root == second.value().root);  // one listener for both
    CHECK(first.value().number != second.value().number);
    CHECK(RootService::instance().running());
  }
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (RootService::instance().running() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(5ms);
  }
  CHECK_FALSE(RootService::instance().running());
  CHECK(create_unique_id({.ifname = "lo"}, 10ms).ok());  // and starts again
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
    CHECK_FALSE(reader.inside_frame());
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

RootHello hello(int rank, int size, std::uint64_t process = kElsewhere) {
  return {.rank = rank, .size = size, .patience_ms = 1000, .process = process, .address = kV4};
}

std::vector<FrameKind> kinds_sent_to(Rendezvous::Connection to,
                                     const std::vector<Rendezvous::Outgoing>& all) {
  std::vector<FrameKind> kinds;
  for (const auto& out : all) {
    if (out.to == to) kinds.push_back(static_cast<FrameKind>(out.frame[4]));
  }
  return kinds;
}

std::string text_sent_to(Rendezvous::Connection to, const std::vector<Rendezvous::Outgoing>& all) {
  std::string text;
  for (const auto& out : all) {
    if (out.to != to) continue;
    text += std::string(reinterpret_cast<const char*>(out.frame.data()), out.frame.size());
  }
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using Kinds = std::vector<FrameKind>;

}  // namespace

TEST_CASE("the rendezvous tells everybody of sizes that differ and of equal numbers",
          "[req:1.38]") {
  const TimePoint now{};
  Rendezvous sizes(kHere, Deadline::never());
  sizes.on_hello(10, hello(0, 4), now);
  sizes.on_hello(11, hello(3, 5), now);
  auto out = sizes.take_outgoing();
  for (const Rendezvous::Connection to : {10, 11}) {
    CHECK(kinds_sent_to(to, out) == Kinds{FrameKind::root_error});
    CHECK(contains(text_sent_to(to, out), "rank 0 joined with size 4, rank 3 with size 5"));
  }
  sizes.on_hello(12, hello(1, 4), now);  // late
  CHECK(contains(text_sent_to(12, sizes.take_outgoing()), "size 5"));
  CHECK_FALSE(sizes.finished());
  sizes.on_hello(13, hello(2, 4), now);
  CHECK_FALSE(sizes.finished());  // one of five has yet to come
  sizes.on_hello(14, hello(4, 5), now);
  CHECK(contains(text_sent_to(14, sizes.take_outgoing()), "size 5"));
  CHECK(sizes.finished());

  // The first caller's size says nothing of how many will come.
  Rendezvous small(kHere, Deadline::never());
  small.on_hello(10, hello(0, 2), now);
  small.on_hello(11, hello(1, 4), now);
  for (int rank = 2; rank < 4; ++rank) {
    CHECK_FALSE(small.finished());
    static_cast<void>(small.take_outgoing());
    small.on_hello(12, hello(rank, 4), now + 600ms);
    CHECK(contains(text_sent_to(12, small.take_outgoing()), "rank 0 joined with size 2"));
  }
  CHECK(small.finished());

  Rendezvous numbers(kHere, Deadline::never());
  numbers.on_hello(20, hello(1, 3), now);
  numbers.on_hello(21, hello(1, 3), now);
  out = numbers.take_outgoing();
  for (const Rendezvous::Connection to : {20, 21}) {
    CHECK(contains(text_sent_to(to, out), "two callers joined as rank 1"));
  }
  // How many come to a rendezvous where numbers come twice nobody can know.
  for (int rank = 0; rank < 4; ++rank) {
    numbers.on_hello(22, hello(rank % 3, 3), now);
    CHECK(contains(text_sent_to(22, numbers.take_outgoing()), "two callers"));
    CHECK_FALSE(numbers.finished());
  }
  numbers.on_time(now + 5s);
  CHECK(numbers.finished());

  Rendezvous range(kHere, Deadline::never());
  range.on_hello(30, hello(3, 3), now);
  CHECK(contains(text_sent_to(30, range.take_outgoing()), "rank 3 of 3"));
  range.on_hello(31, hello(0, 1), now);  // nobody else is affected
  CHECK(kinds_sent_to(31, range.take_outgoing()) == Kinds{FrameKind::root_peers});
}

TEST_CASE("the next timer of a rendezvous is the shortest patience of those not done",
          "[req:1.12]") {
  constexpr int kSize = 200;
  const TimePoint now{};
  std::mt19937 random(7);
  Rendezvous meeting(kHere, Deadline::at(now + 1h));
  CHECK(meeting.next_timer().when() == now + 1h);
  // Several have the same, so that one that is done must not take another one's with it.
  std::map<int, Duration> patience;
  for (int rank = 0; rank < kSize; ++rank) {
    RootHello one = hello(rank, kSize);
    one.patience_ms = 1000 + static_cast<std::uint32_t>(random() % 40);
    patience[rank] = std::chrono::milliseconds(one.patience_ms);
    meeting.on_hello(static_cast<Rendezvous::Connection>(rank), one, now);
    const auto least = std::min_element(patience.begin(), patience.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
    const Duration grace = rank + 1 < kSize ? 0s : Rendezvous::kLinkingGrace;
    REQUIRE(meeting.next_timer().when() == now + least->second + grace);
  }
  while (!patience.empty()) {
    const auto least = std::min_element(patience.begin(), patience.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
    REQUIRE(meeting.next_timer().when() == now + least->second + Rendezvous::kLinkingGrace);
    const auto done = std::next(patience.begin(), static_cast<long>(random() % patience.size()));
    for (int times = 0; times < 2; ++times) {  // the second one changes nothing
      meeting.on_done(static_cast<Rendezvous::Connection>(done->first));
    }
    patience.erase(done);
  }
  CHECK(meeting.next_timer().is_never());
  CHECK(meeting.finished());
}

TEST_CASE("the next timer of a rendezvous takes no longer the more ranks there are", "[req:3.22]") {
  constexpr int kSize = 65536, kTurns = 20'000;
  const TimePoint now{};
  Rendezvous meeting(kHere, Deadline::at(now + 1h));
  for (int rank = 1; rank < kSize; ++rank) {  // one has yet to come
    meeting.on_hello(static_cast<Rendezvous::Connection>(rank), hello(rank, kSize), now);
  }
  static_cast<void>(meeting.take_outgoing());
  const std::clock_t begun = std::clock();
  for (int turn = 0; turn < kTurns; ++turn) {
    REQUIRE(meeting.next_timer().when() == now + 1s);
    meeting.on_time(now);
  }
  // Some 10 ms; with a look at each rank half a minute.
  CHECK((std::clock() - begun) / CLOCKS_PER_SEC < 3);
}

TEST_CASE("the rendezvous names who is late and who has died, before and after it is complete",
          "[req:1.12]") {
  const TimePoint now{};
  Rendezvous late(kHere, Deadline::never());
  late.on_hello(10, hello(1, 4), now);
  late.on_hello(11, hello(2, 4), now);
  CHECK(late.next_timer().when() == now + 1s);
  late.on_time(now + 500ms);
  CHECK(late.take_outgoing().empty());
  late.on_time(now + 1s);
  auto out = late.take_outgoing();
  CHECK(contains(text_sent_to(10, out), "ranks 0, 3 of 4 have not joined in time"));
  CHECK(contains(text_sent_to(11, out), "ranks 0, 3 of 4 have not joined in time"));

  Rendezvous death(kHere, Deadline::never());
  death.on_hello(10, hello(0, 3, kHere), now);
  death.on_hello(11, hello(1, 3), now);
  // Rank 0 lives with the root service, and the others know.
  CHECK(kinds_sent_to(11, death.take_outgoing()) == Kinds{FrameKind::root_host});
  death.on_hello(12, hello(2, 3), now);
  CHECK(kinds_sent_to(12, death.take_outgoing()) ==
        Kinds{FrameKind::root_host, FrameKind::root_peers});
  death.on_done(10);
  death.on_closed(10, now);  // was done: no death
  CHECK(death.take_outgoing().empty());
  death.on_closed(12, now);
  CHECK(contains(text_sent_to(11, death.take_outgoing()), "rank 2 has died"));

  // The reason of a rank that gives up is everybody's, whomever it blames.
  Rendezvous blame(kHere, Deadline::never());
  for (int rank = 0; rank < 3; ++rank) {
    blame.on_hello(static_cast<Rendezvous::Connection>(rank), hello(rank, 3), now);
  }
  static_cast<void>(blame.take_outgoing());
  blame.on_gave_up(1, Error(ErrorCode::remote, "rank 2 has died: so rank 1 says").with_origin(2),
                   now);
  blame.on_closed(1, now);
  CHECK(contains(text_sent_to(0, blame.take_outgoing()), "rank 2 has died: so rank 1 says"));

  Rendezvous good(kHere, Deadline::never());
  for (int rank = 0; rank < 3; ++rank) {
    good.on_hello(static_cast<Rendezvous::Connection>(rank), hello(rank, 3), now);
  }
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_FALSE(good.finished());
    good.on_done(static_cast<Rendezvous::Connection>(rank));
  }
  CHECK(good.finished());
}

}  // namespace oriel::boot
