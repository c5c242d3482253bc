// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/soft/nic_pair.hpp"
#include "net/wire/ring_pair.hpp"

// Message payloads that are borrowed instead of copied (3.21).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

constexpr std::size_t kPayloadRing = 65536;
constexpr std::size_t kPiece = 16384;

/// Engine of a GPU whose copy engine works in slots, and starts only as many stores as the test
/// allows.
class GatedEngine final : public CopyEngine {
 public:
  static constexpr std::size_t kSlots = 6;
  std::size_t stores = 0;              ///< number of stores that may start
  std::size_t store_most = kPiece;     ///< bytes that a store accepts at most
  std::size_t kept_most = kSlots / 2;  ///< number of parts that may be kept
  std::size_t staged = 0;
  std::size_t kept = 0;

  StagedPart load(const std::byte* from, std::size_t count) override {
    const auto free = std::find(slots_.begin(), slots_.end(), Bytes());
    if (free == slots_.end()) return {};
    ++staged;
    free->assign(from, from + count);
    return {*this, free->data(), count, static_cast<std::uint32_t>(free - slots_.begin())};
  }
  bool keep(StagedPart& part) override {
    if (!part.is_kept && kept < kept_most) {
      part.is_kept = true;
      ++kept;
    }
    return part.is_kept;
  }
  std::size_t store(std::byte* to, ByteView from, MoveTicket& /*ticket*/) override {
    if (stores == 0) return 0;
    --stores;
    const std::size_t taken = std::min(from.size(), store_most);
    std::memcpy(to, from.data(), taken);
    return taken;
  }
  bool copy(std::byte* to, const std::byte* from, std::size_t count,
            MoveTicket& /*ticket*/) override {
    std::memcpy(to, from, count);
    return true;
  }
  bool step_atomic(AtomicMove& /*move*/, std::byte* /*at*/) override { return true; }
  bool is_done(MoveTicket /*ticket*/) override { return true; }
  bool flush() override { return false; }
  Status drain() override { return {}; }
  void forget(const std::byte* /*at*/, std::size_t /*count*/) override {}

 private:
  void release(StagedPart& part) noexcept override {
    --staged;
    if (part.is_kept) --kept;
    slots_[part.slot()] = Bytes();
  }
  std::vector<Bytes> slots_{kSlots};
};

/// Two NICs with a ring between them; a's memory is a GPU's with a GatedEngine.
struct GatedPair {
  static constexpr std::size_t kWords = 40'000;

  GatedPair() {
    a.nic.serve_gpu(engine);
    MemoryRange range;
    range.address = a.region.address;
    range.bytes = a.region.bytes;
    range.memory = a.bytes();
    range.access = kAllAccess;
    range.place = MemoryPlace::gpu;
    a.region.keys[0] = a.nic.register_memory(range).value();
    const std::uint32_t wire_a = a.nic.add_wire(std::move(rings.a));
    const std::uint32_t wire_b = b.nic.add_wire(std::move(rings.b));
    SendQueue::Options options;
    options.piece_bytes = kPiece;
    of_a.emplace(a.make_queue(options));
    of_b.emplace(b.make_queue(options));
    REQUIRE(of_a->connect({wire_a, {2}, of_b->number()}).ok());
    REQUIRE(of_b->connect({wire_b, {1}, of_a->number()}).ok());
    a.fill(11);
    b.fill(12);
  }
  void put_from_a(std::uint64_t bytes) {
    REQUIRE(
        dq::put(device::Thread(), of_a->view(), {a.region, 8, b.region, 0, bytes}, {}).outcome ==
        dq::QueueOutcome::done);
  }
  void put_from_b(std::uint64_t bytes, std::uint64_t to = 8) {
    REQUIRE(
        dq::put(device::Thread(), of_b->view(), {b.region, 0, a.region, to, bytes}, {}).outcome ==
        dq::QueueOutcome::done);
  }
  /// Returns true if a's memory after its first word equals b's memory from its beginning.
  bool same(std::size_t bytes) const {
    return std::memcmp(a.memory.data() + 1, b.memory.data(), bytes) == 0;
  }
  void run() {
    for (int i = 0; i < 60; ++i) {
      a.nic.progress();
      b.nic.progress();
    }
  }
  std::uint64_t word_of_ring(std::size_t at) const {
    std::uint64_t value = 0;
    std::memcpy(&value, rings.spy.data() + at, sizeof value);
    return value;
  }

  ManualClock clock;
  GatedEngine engine;
  RingPair rings{kPayloadRing};
  LocalWires unused;
  Side a{unused, clock, kWords}, b{unused, clock, kWords};
  std::optional<SendQueue> of_a, of_b;
};

Bytes numbers(std::size_t count) {
  Bytes made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(i);
  return made;
}

}  // namespace

TEST_CASE("a payload has the bytes of its parts; a copy of a borrowed one owns its bytes",
          "[req:3.21]") {
  Bytes source = numbers(100);
  const Bytes before = source;
  const ByteView all(source);
  const std::size_t cut = GENERATE(0u, 1u, 60u, 100u);
  Payload payload = Payload::borrow(all.first(cut), all.subspan(cut));
  CHECK(payload.is_borrowed());
  CHECK(payload.size() == 100);
  CHECK(payload == before);
  std::vector<std::byte> walked;
  while (walked.size() < 100) {
    const ByteView part = payload.part_at(walked.size());
    REQUIRE_FALSE(part.empty());
    // Walks in steps shorter than a part, too.
    const ByteView step = part.first(std::min<std::size_t>(part.size(), 7));
    walked.insert(walked.end(), step.begin(), step.end());
  }
  CHECK(walked == before);

  const Payload copy = payload;
  CHECK_FALSE(copy.is_borrowed());
  Payload moved = std::move(payload);
  CHECK(payload.empty());  // NOLINT(bugprone-use-after-move)
  CHECK(moved.is_borrowed());
  SECTION("owned") {
    moved.own();
    CHECK_FALSE(moved.is_borrowed());
  }
  SECTION("joined") {
    const ByteView joined = moved.joined();
    CHECK(joined.size() == 100);
    CHECK(moved.is_borrowed() == (cut == 0 || cut == 100));
    moved.own();
  }
  SECTION("moved out and back in") {
    moved = moved.take();
    CHECK_FALSE(moved.is_borrowed());
  }
  std::fill(source.begin(), source.end(), std::byte{0xee});
  CHECK(moved == before);
  CHECK(copy == before);
  CHECK(moved.take() == before);
  CHECK(moved.empty());
}

TEST_CASE("payloads that are not stored at once stay correct though the ring is reused",
          "[req:3.21]") {
  GatedPair pair;
  const std::size_t started = GENERATE(0u, 1u, 2u);  // stores that start at once
  pair.engine.stores = started;
  pair.engine.store_most = 5000;
  constexpr std::size_t kBytes = 40'000;
  const bool puts = GENERATE(true, false);
  INFO((puts ? "a put" : "a get") << " of which " << started << " parts begin at once");
  if (puts) {
    pair.put_from_b(kBytes);
  } else {
    const dq::Transfer transfer{pair.a.region, 8, pair.b.region, 0, kBytes};
    REQUIRE(dq::get(device::Thread(), pair.of_a->view(), transfer, {}).outcome ==
            dq::QueueOutcome::done);
  }
  pair.run();
  CHECK(pair.engine.stores == 0);
  // Nothing holds room in the ring.
  REQUIRE(pair.word_of_ring(kWrittenWord) > kBytes);
  CHECK(pair.word_of_ring(kTakenWord) == pair.word_of_ring(kWrittenWord));
  std::memset(pair.rings.spy.data() + kRingBegins, 0xee, kPayloadRing);
  CHECK_FALSE(pair.same(kBytes));
  pair.engine.stores = 100;
  pair.run();
  CHECK(pair.same(kBytes));
  CHECK(*pair.of_a->memory().first_error == 0);
  CHECK(*pair.of_b->memory().first_error == 0);
}

TEST_CASE("the ring has its room back after a turn that took as much as a turn may take",
          "[req:3.21]") {
  GatedPair pair;
  for (std::uint64_t i = 0; i < 64; ++i) pair.put_from_b(8, 8 * i);
  for (int i = 0; i < 4; ++i) pair.b.nic.progress();
  REQUIRE(traffic(pair.b.nic).requests == 64);
  pair.a.nic.progress();
  CHECK(pair.word_of_ring(kTakenWord) == pair.word_of_ring(kWrittenWord));
}

TEST_CASE("a wire without room loses no payload, and slots come back", "[req:3.21]") {
  GatedPair pair;
  pair.engine.kept_most = GENERATE(std::size_t{0}, GatedEngine::kSlots / 2, GatedEngine::kSlots);
  INFO("parts that may stay: " << pair.engine.kept_most);
  constexpr std::size_t kBytes = 300'000;
  pair.put_from_a(kBytes);
  // b takes nothing until the ring is full.
  for (int i = 0; i < 20; ++i) pair.a.nic.progress();
  CHECK(traffic(pair.a.nic).requests == 3);
  CHECK(pair.engine.kept == std::min<std::size_t>(pair.engine.kept_most, 1));
  SECTION("the rest goes when there is room") {
    pair.run();
    CHECK(pair.same(kBytes));
    CHECK(traffic(pair.a.nic).requests == (kBytes + kPiece - 1) / kPiece);
    CHECK(*pair.of_a->memory().first_error == 0);
  }
  SECTION("the queue ends") {
    REQUIRE(pair.a.nic.to_error(pair.of_a->number()).ok());
  }
  CHECK(pair.engine.staged == 0);
  CHECK(pair.engine.kept == 0);
}

TEST_CASE("the host's memory is sent from where it is, as it is when there is room", "[req:3.21]") {
  GatedPair pair;
  pair.engine.stores = 100;
  constexpr std::size_t kBytes = 300'000;
  pair.put_from_b(kBytes);
  for (int i = 0; i < 20; ++i) pair.b.nic.progress();
  CHECK(traffic(pair.b.nic).requests == 3);
  SECTION("all of it") {
    pair.run();
    CHECK(pair.same(kBytes));
  }
  SECTION("but not once its key has been deregistered") {
    REQUIRE(pair.b.nic.deregister_memory(pair.b.key).ok());
    pair.run();
    CHECK(dq::decode_error(*pair.of_b->memory().first_error).syndrome ==
          static_cast<std::uint8_t>(Syndrome::local_protection));
    CHECK(traffic(pair.b.nic).requests == 3);
  }
}
