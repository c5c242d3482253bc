// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <random>

#include <catch2/catch.hpp>

#include "net/queue/syndrome.hpp"
#include "net/soft/nic_pair.hpp"

// Direct copies between memory that both sides have mapped, without the wire (3.9). Other
// operations are unchanged.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

namespace {

MemoryRange range_of(const Side& side) {
  return {side.region.address, side.region.bytes, reinterpret_cast<std::byte*>(side.region.address),
          0};
}

/// Reconnects the pair's queues as between processes 1 and 2. Messages to b arrive on its wire of
/// this number.
void reconnect(NicPair& pair, std::uint32_t epoch, std::uint32_t wire = 0) {
  REQUIRE(pair.a.nic.to_reset(pair.there.number()).ok());
  REQUIRE(pair.b.nic.to_reset(pair.back.number()).ok());
  const WireAddress of_a = pair.a.nic.address(0), of_b = pair.b.nic.address(wire);
  REQUIRE(pair.there.connect({0, of_b, pair.back.number(), epoch, 2}).ok());
  REQUIRE(pair.back.connect({wire, of_a, pair.there.number(), epoch, 1}).ok());
}

/// Pair in which each side has mapped the other's memory; here the mapping is the memory itself.
struct DirectPair : NicPair {
  explicit DirectPair(const Clock& clock = SteadyClock::instance(),
                      const SendQueue::Options& options = {}, std::size_t words = 8192)
      : NicPair(options, clock, words) {
    reconnect(*this, 1);
    REQUIRE(a.nic.map_peer_memory(2, b.key, range_of(b)).ok());
    map_source();
    b.nic.set_reached(1, b.key, true);
  }
  /// Adds 1 to a word of b without waiting for the old value, which arrives at `old` in a's memory.
  dq::Posted add(std::uint64_t there_at, std::uint64_t old) {
    dq::Reservation place;
    dq::Posted posted{dq::reserve<Thread, DrivingMemory>(Thread(), view(), 1, place, control), 0};
    if (posted.outcome != QueueOutcome::done) return posted;
    dq::detail::write_atomic<dq::AtomicOp::add, std::uint64_t, DrivingMemory>(
        view(), place, 0, b.region.remote(there_at), 1, 0, {a.region.address + old, a.key, 8});
    posted.outcome = dq::publish<Thread, DrivingMemory>(Thread(), view(), place);
    posted.end = place.end();
    return posted;
  }
  /// Makes b unmap a's memory.
  void forget_source() { REQUIRE(b.nic.unmap_peer_memory(1, a.key).ok()); }
  void map_source() {
    REQUIRE(b.nic.map_peer_memory(1, a.key, range_of(a)).ok());
    a.nic.set_reached(2, a.key, true);
  }
  std::uint64_t bytes_by_wire() const {
    return traffic(a.nic).payload_bytes + traffic(b.nic).payload_bytes;
  }
};

/// Lets only `left` more messages through to this NIC.
class GatedWire final : public Wire {
 public:
  explicit GatedWire(std::unique_ptr<Wire> inner) : inner_(std::move(inner)) {}
  WireAddress address() const override { return inner_->address(); }
  bool send(WireAddress to, WireMessage& message) override { return inner_->send(to, message); }
  bool receive(WireMessage& message) override {
    if (left == 0 || !inner_->receive(message)) return false;
    --left;
    return true;
  }
  void end_receive() override { inner_->end_receive(); }
  std::size_t left = ~std::size_t{0};

 private:
  std::unique_ptr<Wire> inner_;
};

}  // namespace

TEST_CASE("puts and gets of memory that is mapped arrive byte for byte without the wire",
          "[req:3.9]") {
  DirectPair pair;
  const unsigned seed = 31;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  pair.a.fill(1);
  pair.b.fill(2);
  std::uint64_t by_wire = 0;
  for (int i = 0; i < 300; ++i) {
    const std::size_t bytes = 1 + random() % 20'000;
    const std::size_t from = random() % (65'536 - bytes), to = random() % (65'536 - bytes);
    const bool writes = random() % 2 == 0;
    REQUIRE(pair.wait(writes ? pair.put(from, to, bytes) : pair.get(to, from, bytes)) ==
            QueueOutcome::done);
    const std::byte* const source = (writes ? pair.a : pair.b).bytes() + from;
    const std::byte* const target = (writes ? pair.b : pair.a).bytes() + to;
    REQUIRE(std::memcmp(source, target, bytes) == 0);
    if (bytes <= 256) by_wire += bytes;
  }
  CHECK(by_wire > 0);
  CHECK(pair.bytes_by_wire() == by_wire);
}

TEST_CASE("a put goes by the wire where the peer has the source mapped no more", "[req:3.9]") {
  DirectPair pair;
  pair.a.fill(1);
  REQUIRE(pair.wait(pair.put(0, 0, 1000)) == QueueOutcome::done);
  CHECK(pair.bytes_by_wire() == 0);
  pair.forget_source();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    CHECK(pair.wait(pair.put(0, i * 8000, 5000)) == QueueOutcome::done);
    CHECK(std::memcmp(pair.a.bytes(), pair.b.bytes() + i * 8000, 5000) == 0);
  }
  // The peer refuses once; the refusal is remembered for the key.
  CHECK(traffic(pair.a.nic).refused == 1);
  CHECK(pair.bytes_by_wire() == 15'000);
  CHECK(pair.wait(pair.get(40'000, 0, 5000)) == QueueOutcome::done);
  CHECK(pair.bytes_by_wire() == 15'000);
}

TEST_CASE("operations behind a put of an unmapped source run once and in order despite losses",
          "[req:3.9][F4]") {
  const unsigned seed = GENERATE(range(1u, 41u));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  ManualClock clock;
  DirectPair pair(clock, {.piece_bytes = 700 + static_cast<std::uint32_t>(random() % 3000)});
  pair.a.fill(seed);
  std::fill(pair.b.memory.begin(), pair.b.memory.end(), 0);
  NicFaults faults;
  faults.seed = seed;
  for (int i = 0; i < 6; ++i) faults.lost_responses.push_back({0, 1 + random() % 60, 1});
  set_faults(pair.b.nic, faults);
  // Each put overwrites the data of the previous one. An atomic between the two observes the data.
  constexpr std::uint64_t kCounter = 60'000, kPuts = 24, kBytes = 1000, kSeen = 30'000;
  dq::Posted posted;
  for (std::uint64_t i = 0; i < kPuts; ++i) {
    REQUIRE(pair.put(i * kBytes, 0, kBytes).outcome == QueueOutcome::done);
    REQUIRE(pair.add(0, kSeen + i * 8).outcome == QueueOutcome::done);
    posted = pair.add(kCounter, kSeen + (kPuts + i) * 8);
    REQUIRE(posted.outcome == QueueOutcome::done);
    if (random() % 4 == 0) pair.a.nic.progress();
    if (random() % 4 == 0) pair.b.nic.progress();
    if (random() % 4 == 0) pair.forget_source();
    if (random() % 4 == 0) pair.map_source();
  }
  for (int i = 0; i < 40; ++i, clock.advance(std::chrono::seconds(5))) pair.run();
  CHECK(pair.wait(posted) == QueueOutcome::done);
  CHECK(pair.b.memory[kCounter / 8] == kPuts);
  const std::uint64_t* const seen = pair.a.memory.data() + kSeen / 8;
  for (std::uint64_t i = 0; i < kPuts; ++i) {
    CHECK(seen[i] == pair.a.memory[i * kBytes / 8]);
    CHECK(seen[kPuts + i] == i);
  }
  CHECK(pair.b.memory[0] == seen[kPuts - 1] + 1);
  CHECK(std::memcmp(pair.a.bytes() + (kPuts - 1) * kBytes + 8, pair.b.bytes() + 8, kBytes - 8) ==
        0);
}

TEST_CASE("a WQE of which a part was copied directly goes on by the wire", "[req:3.9]") {
  ManualClock clock;
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  DirectPair pair(clock, {.piece_bytes = 64 << 10}, 6 * kMiB / 8);
  pair.a.fill(3);
  NicFaults faults;
  // Loses the first answer on the wires that b has now. The wire added below has no faults.
  faults.lost_responses.push_back({0, 1, 1});
  set_faults(pair.b.nic, faults);
  auto gate = std::make_unique<GatedWire>(pair.exchange.attach());
  GatedWire& arriving = *gate;
  reconnect(pair, 2, pair.b.nic.add_wire(std::move(gate)));
  const auto posted = pair.put(0, 0, 5 * kMiB + 12'345);
  // Two pieces of 1 MiB each arrive before the peer unmaps the source.
  arriving.left = 2;
  pair.run();
  CHECK(std::memcmp(pair.a.bytes(), pair.b.bytes(), 2 * kMiB) == 0);
  CHECK(pair.bytes_by_wire() == 0);
  arriving.left = ~std::size_t{0};
  pair.forget_source();
  for (int i = 0; i < 4; ++i, clock.advance(std::chrono::seconds(5))) pair.run();
  CHECK(pair.wait(posted) == QueueOutcome::done);
  CHECK(std::memcmp(pair.a.bytes(), pair.b.bytes(), 5 * kMiB + 12'345) == 0);
  CHECK(pair.bytes_by_wire() == 3 * kMiB + 12'345);
}

TEST_CASE("direct copies need the same access rights as transfers by the wire",
          "[req:3.9][req:3.23]") {
  const bool writes = GENERATE(false, true);
  DirectPair pair;
  pair.a.fill(1);
  const std::uint32_t weak = pair.b.add_key(writes ? kRemoteRead : kLocalWrite | kRemoteWrite);
  REQUIRE(pair.a.nic.map_peer_memory(2, weak, range_of(pair.b)).ok());
  const dq::Transfer transfer{pair.a.region, 0, pair.b.with_key(weak), 0, 1000};
  CHECK(pair.wait(writes ? pair.put(transfer) : pair.get(transfer)) == QueueOutcome::failed);
  CHECK(pair.error().syndrome == static_cast<std::uint32_t>(Syndrome::remote_access));
  const auto is_zero = [](std::uint64_t word) { return word == 0; };
  CHECK(std::all_of(pair.b.memory.begin(), pair.b.memory.end(), is_zero));
}

TEST_CASE("a direct copy to a deregistered key fails, nothing is written", "[req:3.9]") {
  DirectPair pair;
  pair.a.fill(1);
  REQUIRE(pair.wait(pair.put(0, 0, 1000)) == QueueOutcome::done);
  REQUIRE(pair.b.nic.deregister_memory(pair.b.key).ok());
  std::fill(pair.b.memory.begin(), pair.b.memory.end(), 0);
  CHECK(pair.wait(pair.put(0, 0, 1000)) == QueueOutcome::failed);
  CHECK(pair.b.memory[0] == 0);
}

TEST_CASE("a put goes by the wire where only this side has mapped the other's memory",
          "[req:3.9]") {
  NicPair pair;
  // Only this side has mapped the peer's memory: a put uses the wire, a get need not.
  REQUIRE(pair.a.nic.map_peer_memory(2, pair.b.key, range_of(pair.b)).ok());
  reconnect(pair, 1);
  pair.a.fill(1);
  REQUIRE(pair.wait(pair.put(0, 0, 5000)) == QueueOutcome::done);
  CHECK(std::memcmp(pair.a.bytes(), pair.b.bytes(), 5000) == 0);
  CHECK(traffic(pair.a.nic).payload_bytes == 5000);
  REQUIRE(pair.wait(pair.get(10'000, 0, 5000)) == QueueOutcome::done);
  CHECK(std::memcmp(pair.a.bytes() + 10'000, pair.b.bytes(), 5000) == 0);
  CHECK(traffic(pair.b.nic).payload_bytes == 0);
}

TEST_CASE("peers' memory that cannot be is not taken", "[req:3.23]") {
  NicSoft nic;
  std::byte memory[64];
  CHECK_FALSE(nic.map_peer_memory(0, 1, {1, 64, memory, 0}).ok());
  CHECK_FALSE(nic.map_peer_memory(1, 0, {1, 64, memory, 0}).ok());
  CHECK_FALSE(nic.map_peer_memory(1, 1, {1, 0, memory, 0}).ok());
  CHECK_FALSE(nic.map_peer_memory(1, 1, {1, 64, nullptr, 0}).ok());
  CHECK_FALSE(nic.map_peer_memory(1, 1, {~std::uint64_t{0} - 8, 64, memory, 0}).ok());
  CHECK(nic.map_peer_memory(1, 1, {1, 64, memory, 0}).ok());
  CHECK(nic.unmap_peer_memory(1, 1).ok());
}
