// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>
#include <dlfcn.h>

#include "net/fabric/fabric_address.hpp"
#include "net/fabric/fabric_faults.hpp"
#include "net/fabric/fabric_pair.hpp"
#include "support/fabric_provider_name.hpp"

// Wire over libfabric (3.13), between two ends in one process over loopback.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::AtomicOp;
using dq::QueueOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Returns the handlers of signals 1 to 31.
std::array<void (*)(int), 32> handlers() {
  std::array<void (*)(int), 32> found{};
  for (int signal = 1; signal < 32; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    found[static_cast<std::size_t>(signal)] = action.sa_handler;
  }
  return found;
}

// Returns true for a handler of libfabric or its libraries; the test framework and the sanitizers
// have handlers too.
bool is_of_fabric(void (*handler)(int)) {
  if (handler == SIG_DFL || handler == SIG_IGN) return false;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(handler), &info) == 0) return false;
  const std::string module = info.dli_fname;
  return module.find("fabric.so") != std::string::npos || module.find("psm") != std::string::npos ||
         module.find("infinipath") != std::string::npos;
}

}  // namespace

TEST_CASE("messages of all sizes arrive in the order in which they were sent", "[req:3.13]") {
  WirePair pair;
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  // The provider sends messages of some KiB and more in another way, in which they could be
  // overtaken.
  const std::array<std::size_t, 8> most = {0, 8, 300, 400, 5000, 20'000, 150'000, 262'144};
  std::vector<std::size_t> sizes;
  std::uint64_t sent = 0, received = 0;
  constexpr std::uint64_t kMessages = 400;
  REQUIRE(soon([&] {
    if (sent < kMessages && random() % 2 == 0) {
      const std::size_t limit = most[random() % most.size()];
      const std::size_t bytes = limit == 0 ? 0 : limit - random() % std::min(limit, most[2]);
      WireMessage message = numbered(sent, bytes);
      if (pair.a->send(pair.b->address(), message)) {
        sizes.push_back(bytes);
        ++sent;
      } else {
        CHECK(is_numbered(message, sent, bytes));
      }
    }
    WireMessage message;
    while (pair.b->receive(message)) {
      REQUIRE(is_numbered(message, received, sizes[received]));
      ++received;
    }
    CHECK_FALSE(pair.a->receive(message));
    return received == kMessages;
  }));
  CHECK(pair.a->flush(Deadline::after(seconds(10))).ok());
  CHECK(pair.a->status().ok());
  CHECK(pair.b->status().ok());
  CHECK(pair.a->peer_status(pair.b->address()).ok());
}

TEST_CASE("immediates are applied in the order of the queue", "[req:3.13]") {
  SendQueue::Options options;
  options.receives = 64;
  FabricPair pair(options);
  REQUIRE(post_receives(pair.back, 64));
  dq::Posted last;
  for (std::uint32_t i = 0; i < 64; ++i) {
    last = pair.put_immediate(pair.transfer(0, 0, 1 + i * 100), 1000 + i);
    REQUIRE(last.outcome == QueueOutcome::done);
  }
  REQUIRE(pair.wait(last) == QueueOutcome::done);
  for (std::uint32_t i = 0; i < 64; ++i) {
    Immediate immediate;
    REQUIRE(take_immediate(pair.back, immediate));
    CHECK(immediate.value == 1000 + i);
    CHECK(immediate.bytes == 1 + i * 100);
  }
}

TEST_CASE("payloads are authenticated both ways if either end requests it", "[req:3.13]") {
  auto authenticating = fabric_options();
  authenticating.authenticate_payloads = true;
  WirePair pair(fabric_options(), authenticating);
  for (const bool forth : {true, false}) {
    WireFabric* const from = forth ? pair.a.get() : pair.b.get();
    WireFabric* const to = forth ? pair.b.get() : pair.a.get();
    WireMessage message = numbered(1, 100'000);
    bool sent = false;
    WireMessage got;
    REQUIRE(soon([&] {
      sent = sent || from->send(to->address(), message);
      from->receive(got);
      return to->receive(got);
    }));
    CHECK(is_numbered(got, 1, 100'000));
  }
}

TEST_CASE("a ping-pong of puts takes one fabric message each way", "[req:3.20]") {
  const std::uint64_t bytes = GENERATE(8u, 329u, 2000u, 10'000u);
  const bool is_registered = GENERATE(false, true);
  CAPTURE(bytes, is_registered);
  FabricPlan plan;
  long sends = 0;
  plan.fail = [&](const char* call) {
    sends += std::string_view(call) == "fi_sendmsg" ? 1 : 0;
    return 0;
  };
  // If memory has to be registered, payloads are copied behind the batch.
  FabricPair pair({}, fabric_options(is_registered ? &changed_fabric<need_registered_memory>()
                                                   : &planned_fabric()));
  const auto put_signal = [&](SendQueue& queue, Side& from, Side& to) {
    const auto posted = dq::put_signal<dq::SignalOp::add, device::Thread, DrivingMemory>(
        device::Thread(), queue.view(), {from.region, 0, to.region, 8, bytes}, to.region, 0, 1,
        pair.control);
    REQUIRE(posted.outcome == dq::QueueOutcome::done);
  };
  const auto comes = [&](Side& to, std::uint64_t value) {
    return soon([&] {
      pair.a.nic.progress();
      if (to.memory[0] < value) pair.b.nic.progress();
      return to.memory[0] >= value;
    });
  };
  constexpr std::uint64_t kTrips = 20;
  for (std::uint64_t i = 1; i <= kTrips; ++i) {
    put_signal(pair.there, pair.a, pair.b);
    REQUIRE(comes(pair.b, i));
    put_signal(pair.back, pair.b, pair.a);
    REQUIRE(comes(pair.a, i));
    if (i == 1) sends = 0;  // connecting took further sends
  }
  // Each put's message also carries the answer to the put before.
  CHECK(sends == 2 * static_cast<long>(kTrips - 1));
}

TEST_CASE("writes that complete together are answered by one message", "[req:3.20]") {
  FabricPair pair;
  dq::Posted last{};
  for (int i = 0; i < 10; ++i) {
    last = pair.put(0, 8, 8);
    REQUIRE(last.outcome == dq::QueueOutcome::done);
  }
  REQUIRE(pair.wait(last) == dq::QueueOutcome::done);
  CHECK(fabric_messages(pair.a.nic) == 10);
  CHECK(fabric_messages(pair.b.nic) == 1);
}

TEST_CASE("a library that is missing is named with its package", "[req:3.13]") {
  const FabricLibrary library = load_fabric_library("libfabric-that-is-not-there.so.1");
  CHECK(library.missing.find("libfabric1") != std::string::npos);
  CHECK(library.missing.find("not-there") != std::string::npos);
  // Refuses a library that is not libfabric.
  CHECK(load_fabric_library("libc.so.6").missing.find("it has no fi_") != std::string::npos);
}

TEST_CASE("no handler of a signal is left by libfabric and what comes with it", "[req:3.13]") {
  for (const auto handler : handlers()) {
    CHECK_FALSE(is_of_fabric(handler));
  }
  const auto before = handlers();
  {
    auto options = fabric_options();
    options.provider.clear();  // asks for several providers, up to the first that fits
    WirePair pair(options);
  }
  CHECK(handlers() == before);
}

TEST_CASE("the provider is chosen by what there is, and a wish that fails is named", "[req:3.13]") {
  auto options = fabric_options();
  options.provider.clear();
  const std::string chosen = open_wire(options)->provider();
  INFO(chosen);
  CHECK(chosen.find("shm") == std::string::npos);
  CHECK(chosen.find("sockets") == std::string::npos);
  options.provider = "no-such-provider";
  const auto none = WireFabric::create(options);
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().message().find("no-such-provider") != std::string::npos);
  CHECK(none.error().code() == ErrorCode::invalid_usage);
  for (const char* word : {"ORIEL_FABRIC_PROVIDER", "libfabric1"}) {
    CHECK(none.error().to_string().find(word) != std::string::npos);
  }
  // libfabric would choose any other provider.
  options.provider = "^no-such-provider";
  const auto any = WireFabric::create(options);
  REQUIRE_FALSE(any.ok());
  CHECK(any.error().code() == ErrorCode::invalid_usage);
  for (const char* word : {"ORIEL_FABRIC_PROVIDER", "^no-such-provider", "all providers but"}) {
    CHECK(any.error().to_string().find(word) != std::string::npos);
  }
  options = fabric_options();
  options.socket.ifname = "=no-such-interface";
  CHECK_FALSE(WireFabric::create(options).ok());
}

TEST_CASE("sizes that a wire cannot have are refused", "[req:3.23]") {
  for (const auto spoil : std::vector<void (*)(WireFabric::Options&)>{
           [](auto& o) { o.receives = 3; }, [](auto& o) { o.sends = 4097; },
           [](auto& o) { o.payload_bytes_most = 0; },
           [](auto& o) { o.payload_bytes_most = kPieceBytesMost + 1; }}) {
    auto options = fabric_options();
    spoil(options);
    const auto wire = WireFabric::create(options);
    REQUIRE_FALSE(wire.ok());
    CHECK(wire.error().code() == ErrorCode::invalid_argument);
  }
  auto small = fabric_options();
  small.payload_bytes_most = 1000;
  WirePair pair(fabric_options(), small);
  WireMessage message = numbered(0, 1001);
  CHECK(pair.a->send(pair.b->address(), message));  // can never be sent, so is lost
  const Status status = pair.a->peer_status(pair.b->address());
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().to_string().find("rank 1") != std::string::npos);
  CHECK(status.error().to_string().find("1001") != std::string::npos);
  message = numbered(0, 8);
  CHECK(pair.a->send({pair.b->address().value + 1}, message));  // to no peer: lost as well
  CHECK_FALSE(pair.a->peer_status({12345}).ok());
}

TEST_CASE("addresses that are no peer's are refused", "[req:3.23]") {
  WirePair pair;
  const Bytes good = pair.b->local_address();
  CHECK_FALSE(pair.a->add_peer(good, "again").ok());
  CHECK_FALSE(pair.a->add_peer(pair.a->local_address(), "itself").ok());
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    CHECK_FALSE(pair.a->add_peer(ByteView(good).first(bytes), "cut").ok());
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(pair.a->add_peer(longer, "longer").ok());
  FabricAddress other = decode_fabric_address(good).value();
  CHECK(encode(other) == good);
  other.provider = "efa";
  const auto mixed = pair.a->add_peer(encode(other), "rank 7");
  REQUIRE_FALSE(mixed.ok());
  for (const char* word :
       {"rank 7", "efa", oriel::test::fabric_provider(), "ORIEL_FABRIC_PROVIDER"}) {
    CHECK(mixed.error().to_string().find(word) != std::string::npos);
  }
  const std::vector<void (*)(FabricAddress&)> spoil = {
      [](auto& a) { a.id = 0; },
      [](auto& a) { a.payload_bytes_most = 0; },
      [](auto& a) { a.payload_bytes_most = kPieceBytesMost + 1; },
      [](auto& a) { a.provider = ""; },
      [](auto& a) { a.provider = "tcp\n"; },
      [](auto& a) { a.provider = std::string(65, 'x'); },
      [](auto& a) { a.address.clear(); },
      [](auto& a) { a.address.resize(257); },
      [](auto& a) { a.address.resize(15); },
      [](auto& a) { ++a.format; },
  };
  for (const auto change : spoil) {
    FabricAddress bad = decode_fabric_address(good).value();
    ++bad.id;
    change(bad);
    CHECK_FALSE(pair.a->add_peer(encode(bad), "spoilt").ok());
  }
}

TEST_CASE("of a peer with several queues, only messages from these are delivered", "[req:3.13]") {
  std::unique_ptr<WireFabric> a = open_wire(fabric_options());
  std::unique_ptr<WireFabric> b = open_wire(fabric_options());
  REQUIRE(a->add_peer(b->local_address(), "rank 1").ok());
  REQUIRE(b->add_peer(a->local_address(), "rank 0", {5, 9}).ok());
  for (const std::uint32_t queue : {7u, 5u, 1u, 9u}) {
    WireMessage message = numbered(queue, 10);
    std::get<WireResponse>(message.body).to_queue = queue;
    REQUIRE(a->send(b->address(), message));
  }
  a->end_turn();
  std::vector<std::uint64_t> last_received;
  REQUIRE(soon([&] {
    WireMessage message;
    a->receive(message);
    if (b->receive(message)) last_received.push_back(std::get<WireResponse>(message.body).number);
    return last_received.size() == 2;
  }));
  CHECK(last_received == std::vector<std::uint64_t>{5, 9});
}

TEST_CASE("each message of a peer acknowledges what has arrived there", "[req:3.19]") {
  WirePair pair;
  const auto says = [](WireFabric& from, WireFabric& to) {
    WireMessage message = numbered(1, 8), got;
    REQUIRE(soon([&] { return from.send(to.address(), message); }));
    REQUIRE(soon([&] {
      from.end_turn();
      WireMessage none;
      CHECK_FALSE(from.receive(none));
      return to.receive(got);
    }));
    return message.place;
  };
  const WireAddress b = pair.b->address();
  const std::uint64_t first = says(*pair.a, *pair.b);
  CHECK(first != 0);
  CHECK(pair.a->sign_of(b).arrived < first);
  says(*pair.b, *pair.a);
  CHECK(pair.a->sign_of(b).arrived >= first);
  const std::uint64_t second = says(*pair.a, *pair.b);
  CHECK(second > first);
  CHECK(pair.a->sign_of(b).arrived < second);
  says(*pair.b, *pair.a);
  CHECK(pair.a->sign_of(b).arrived >= second);
}

TEST_CASE("a queue that does not answer fails as soon as if its NIC sent nothing else",
          "[req:3.19]") {
  SendQueue::Options options;
  options.answer_timeout = milliseconds(60);
  options.retransmissions_most = 3;
  FabricPair pair(options);
  NicFaults dead;
  dead.lost_responses.push_back({.queue = 0, .nth = 1, .count = ~std::uint64_t{0}});
  set_faults(pair.b.nic, std::move(dead));
  const auto put = [&](const SendQueue& queue, const Side& from, const Side& to) {
    return dq::put<Thread, DrivingMemory>(Thread(), queue.view(), {from.region, 0, to.region, 8, 8},
                                          {});
  };
  REQUIRE(put(pair.there, pair.a, pair.b).outcome == QueueOutcome::done);
  TimePoint said{};
  REQUIRE(soon([&] {
    for (NicSoft* const nic : pair.all) nic->progress();
    const TimePoint now = SteadyClock::instance().now();
    if (now - said >= milliseconds(5)) {
      said = now;
      REQUIRE(put(pair.back, pair.b, pair.a).outcome == QueueOutcome::done);
    }
    return *pair.there.memory().first_error != 0;
  }));
  CHECK(dq::decode_error(*pair.there.memory().first_error).syndrome ==
        static_cast<std::uint8_t>(Syndrome::transport_retry));
  CHECK(*pair.back.memory().first_error == 0);
  CHECK(traffic(pair.a.nic).retransmitted <= 8);  // 24 if each counted an eighth of a retry
}
