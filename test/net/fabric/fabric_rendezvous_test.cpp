// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "net/fabric/fabric_faults.hpp"
#include "net/fabric/fabric_pair.hpp"
#include "net/queue/syndrome.hpp"
#include "support/sanitized.hpp"

// Long writes between hosts: the target's NIC gets the bytes by rendezvous reads (3.13, 3.20).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

namespace {

constexpr std::size_t kMemoryWords = std::size_t{3} << 16;  // 1.5 MiB
constexpr std::size_t kMemoryBytes = kMemoryWords * 8;
constexpr std::size_t kLong = 16 * 1024;  // writes of this size or more are rendezvous writes

struct RendezvousPair : FabricPair {
  explicit RendezvousPair(const WireFabric::Options& options = fabric_options())
      : FabricPair({}, options, kMemoryWords) {
    a.fill(1);
    b.fill(2);
  }
  bool arrived(std::size_t from, std::size_t to, std::size_t bytes) {
    return std::memcmp(a.bytes() + from, b.bytes() + to, bytes) == 0;
  }
  std::uint64_t rendezvous_reads() const { return traffic(b.nic).rendezvous_reads; }
  std::uint64_t read_bytes() const { return traffic(b.nic).read_bytes; }
};

void read_nothing(fi_info& info) {
  info.caps &= ~FI_RMA;
}
int providers_taken = 0;
void read_nothing_at_second(fi_info& info) {
  if (++providers_taken == 2) read_nothing(info);
}

/// Checks that a put of all memory arrives in messages, without a rendezvous read.
void check_without_reads(RendezvousPair& pair) {
  REQUIRE(pair.wait(pair.put(0, 0, kMemoryBytes)) == QueueOutcome::done);
  CHECK(pair.arrived(0, 0, kMemoryBytes));
  CHECK(pair.rendezvous_reads() == 0);
}

}  // namespace

TEST_CASE("long puts arrive by rendezvous reads, before the signals that follow them",
          "[req:3.13]") {
  RendezvousPair pair;
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::uint64_t expected = 0;
  for (int i = 0; i < 24; ++i) {
    const bool is_long = random() % 4 != 0;
    const std::size_t bytes = is_long ? kLong + random() % 500'000 : 1 + random() % (kLong - 1);
    const std::size_t from = random() % (kMemoryBytes - bytes),
                      to = random() % (kMemoryBytes - 8 - bytes);
    if (is_long) expected += bytes;
    const std::uint64_t before = pair.b.memory.back();
    const auto posted = dq::put_signal<dq::SignalOp::add, Thread, DrivingMemory>(
        Thread(), pair.view(), pair.transfer(from, to, bytes), pair.b.region, kMemoryBytes - 8, 1,
        pair.control);
    REQUIRE(posted.outcome == QueueOutcome::done);
    // The bytes must be visible once the signal is.
    REQUIRE(soon([&] {
      pair.turn();
      return pair.b.memory.back() != before;
    }));
    REQUIRE(pair.arrived(from, to, bytes));
    REQUIRE(pair.wait(posted) == QueueOutcome::done);
  }
  CHECK(pair.read_bytes() == expected);
}

TEST_CASE("the last of several puts to one address wins, by rendezvous read or sent",
          "[req:3.13]") {
  RendezvousPair pair;
  constexpr std::size_t kMost = 700'000;
  for (int round = 0; round < 5; ++round) {
    pair.b.fill(3);
    dq::Posted last{};
    for (const std::size_t bytes : {kMost, std::size_t{100}, kLong, 2 * kLong}) {
      last = pair.put(bytes, 64, bytes);
      REQUIRE(last.outcome == QueueOutcome::done);
    }
    REQUIRE(pair.wait(last) == QueueOutcome::done);
    CHECK(pair.arrived(2 * kLong, 64, 2 * kLong));
    CHECK(pair.arrived(kMost + 2 * kLong, 64 + 2 * kLong, kMost - 2 * kLong));
  }
}

TEST_CASE("if rendezvous reads are impossible or not wanted, puts arrive without them",
          "[req:3.13]") {
  SECTION("one end wants payloads authenticated") {
    auto authenticating = fabric_options();
    authenticating.authenticate_payloads = true;
    RendezvousPair pair(authenticating);
    check_without_reads(pair);
  }
  SECTION("the provider cannot read") {
    FabricPlan plan;
    RendezvousPair pair(fabric_options(&changed_fabric<read_nothing>()));
    check_without_reads(pair);
  }
  SECTION("the memory cannot be registered") {
    FabricPlan plan;
    plan.fail = [](const char* call) -> long {
      return std::string_view(call) == "fi_mr_reg" ? -FI_ENOMEM : 0;
    };
    RendezvousPair pair(fabric_options(&planned_fabric()));
    check_without_reads(pair);
  }
  SECTION("the target's provider cannot, and refuses") {
    FabricPlan plan;
    providers_taken = 0;
    RendezvousPair pair(fabric_options(&changed_fabric<read_nothing_at_second>()));
    check_without_reads(pair);
    CHECK(traffic(pair.a.nic).refused == 1);
    // The peer is not asked for another rendezvous read.
    check_without_reads(pair);
    CHECK(traffic(pair.a.nic).refused == 1);
  }
}

TEST_CASE("rendezvous reads complete though the provider is busy and needs registered memory",
          "[req:3.13]") {
  FabricPlan plan;
  std::mt19937 random(7);
  plan.fail = [&](const char* call) -> long {
    return std::string_view(call) == "fi_read" && random() % 4 != 0 ? -FI_EAGAIN : 0;
  };
  {
    RendezvousPair pair(fabric_options(&changed_fabric<need_registered_memory>()));
    REQUIRE(pair.wait(pair.put(0, 0, kMemoryBytes)) == QueueOutcome::done);
    CHECK(pair.arrived(0, 0, kMemoryBytes));
    CHECK(pair.read_bytes() == kMemoryBytes);
  }
  CHECK(plan.open.empty());
}

namespace {

/// Counts of the reads in flight.
struct ReadsSeen {
  int under_way = 0;
  int most = 0;
  int since_gap = 0;
  int longest = 0;  // reads in a row without a gap
};
ReadsSeen reads_seen;

ssize_t counted_read(fid_ep* endpoint, void* to, std::size_t bytes, void* descriptor,
                     fi_addr_t from, std::uint64_t address, std::uint64_t key, void* context) {
  const ssize_t status =
      FabricPlan::real().fi_read(endpoint, to, bytes, descriptor, from, address, key, context);
  if (status == 0) reads_seen.most = std::max(reads_seen.most, ++reads_seen.under_way);
  return status;
}

}  // namespace

TEST_CASE(
    "the number of concurrent rendezvous reads follows the link's rate, with gaps for its peer",
    "[req:3.20]") {
  constexpr std::size_t kLongPut = std::size_t{24} << 20;
  ManualClock clock;
  FabricPlan plan;
  Duration each{};
  plan.completions = [&](fi_cq_msg_entry* entry, ssize_t found) {
    if (found != 1 || (entry->flags & FI_READ) == 0) return found;
    clock.advance(each);
    ++reads_seen.since_gap;
    reads_seen.longest = std::max(reads_seen.longest, reads_seen.since_gap);
    if (--reads_seen.under_way == 0) reads_seen.since_gap = 0;
    return found;
  };
  FabricTable table = planned_fabric();
  table.fi_read = counted_read;
  auto options = fabric_options(&table);
  options.clock = &clock;
  FabricPair pair({}, options, kLongPut / 8);
  pair.a.fill(1);
  const auto put_all = [&] {
    reads_seen = {};
    REQUIRE(pair.wait(pair.put(0, 0, kLongPut)) == QueueOutcome::done);
    CHECK(std::memcmp(pair.a.bytes(), pair.b.bytes(), kLongPut) == 0);
    CHECK(traffic(pair.b.nic).read_bytes % kLongPut == 0);
  };
  SECTION("a fast one") {
    each = std::chrono::milliseconds(3);
    put_all();
    CHECK(reads_seen.most > 8);
    CHECK(reads_seen.longest < 250 / 3 + 33);
  }
  SECTION("a slow one") {
    each = std::chrono::milliseconds(100);  // 10 Mbit/s
    put_all();
    CHECK(reads_seen.most <= 4);
    put_all();
    CHECK(reads_seen.most == 1);
    CHECK(pair.wire_b->sign_of(pair.wire_a->address()).last_received == clock.now());
  }
}

TEST_CASE("a failed rendezvous read is retried, and in the end its WQE fails", "[req:3.13]") {
  FabricPlan plan;
  int failures = 3;
  plan.fail = [&](const char* call) -> long {
    return std::string_view(call) == "fi_read" && failures != 0 && failures-- > 0 ? -FI_EIO : 0;
  };
  FabricTable table = planned_fabric();
  RendezvousPair pair(fabric_options(&table));
  REQUIRE(pair.wait(pair.put(0, 0, 2 * kLong)) == QueueOutcome::done);
  CHECK(pair.arrived(0, 0, 2 * kLong));
  CHECK(pair.rendezvous_reads() == 4);
  const std::byte behind = pair.b.bytes()[kMemoryBytes - 1];
  // Makes the reads name a wrong key, so that the source's wire refuses them.
  plan.fail = [](const char*) { return 0; };
  static std::uint64_t asked;
  asked = 0;
  table.fi_read = [](fid_ep* endpoint, void* to, std::size_t bytes, void* descriptor,
                     fi_addr_t from, std::uint64_t address, std::uint64_t key, void* context) {
    ++asked;
    return FabricPlan::real().fi_read(endpoint, to, bytes, descriptor, from, address, key ^ 1,
                                      context);
  };
  CHECK(pair.wait(pair.put(0, kMemoryBytes - kLong, kLong)) == QueueOutcome::failed);
  CHECK(dq::decode_error(*pair.there.memory().first_error).syndrome ==
        static_cast<std::uint8_t>(Syndrome::remote_operation));
  CHECK(asked > 1);
  CHECK(pair.b.bytes()[kMemoryBytes - 1] == behind);
  CHECK(pair.wire_b->peer_status(pair.wire_a->address())
            .error()
            .to_string()
            .find("reading from rank 0") != std::string::npos);
}

TEST_CASE("memory is deregistered only after rendezvous reads from it and into it", "[req:3.13]") {
  for (const bool gives_source : {true, false}) {
    RendezvousPair pair;
    std::atomic<bool> over = false;
    Side& one = gives_source ? pair.a : pair.b;
    Side& other = gives_source ? pair.b : pair.a;
    pair.begin_long_put(kMemoryBytes);
    std::thread drives([&] {
      while (!over) other.nic.progress();
    });
    CHECK(one.nic.deregister_memory(one.key).ok());
    over = true;
    drives.join();
    CHECK(pair.wire_a->status().ok());
    CHECK(pair.wire_b->status().ok());
    // The part that was in flight has arrived.
    CHECK(pair.arrived(0, 0, std::size_t{1} << 20));
  }
}

TEST_CASE("a key is freed at once while another one reads into the same memory", "[req:3.13]") {
  RendezvousPair pair;
  const std::uint32_t second_key = pair.b.add_key(kAllAccess);
  const auto posted = pair.begin_long_put(kMemoryBytes);
  // Nothing drives the peer, so the read does not end meanwhile.
  const auto begin = std::chrono::steady_clock::now();
  CHECK(pair.b.nic.deregister_memory(second_key).ok());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  CHECK(pair.wait(posted) == QueueOutcome::done);
  CHECK(pair.arrived(0, 0, kMemoryBytes));
}

namespace {

/// Third rank, connected with one rank of a pair by a queue of its own.
struct Bystander {
  Bystander(RendezvousPair& pair, Side& with, WireFabric& wire_of_with)
      : side(pair.exchange, SteadyClock::instance(), kMemoryWords),
        queue(side.make_queue()),
        back(with.make_queue()) {
    auto made = open_wire(fabric_options());
    wire = made.get();
    REQUIRE(made->add_peer(wire_of_with.local_address(), "with").ok());
    REQUIRE(wire_of_with.add_peer(made->local_address(), "the bystander").ok());
    const std::uint32_t number = side.nic.add_wire(std::move(made));
    // In a NIC of a pair, the fabric wire is the second wire.
    REQUIRE(queue.connect({number, wire_of_with.address(), back.number()}).ok());
    REQUIRE(back.connect({1, wire->address(), queue.number()}).ok());
  }
  dq::Posted post(Side& with) {
    const std::array<NicSoft*, 2> all{&side.nic, &with.nic};
    const DrivingScope scope(all);
    return dq::put<Thread, DrivingMemory>(Thread(), queue.view(),
                                          {side.region, 0, with.region, 0, kMemoryBytes}, {});
  }
  /// Returns true if a long put to `with` has arrived.
  bool puts(Side& with, std::uint64_t seed) {
    side.fill(seed);
    const std::array<NicSoft*, 2> all{&side.nic, &with.nic};
    const DrivingScope scope(all);
    device::WaitControl control;
    control.timeout_ns = 60'000'000'000;
    const auto posted = dq::put<Thread, DrivingMemory>(
        Thread(), queue.view(), {side.region, 0, with.region, 0, kMemoryBytes}, control);
    return posted.outcome == QueueOutcome::done &&
           dq::wait_complete<DrivingMemory>(queue.view(), posted.end, control) ==
               QueueOutcome::done &&
           side.memory == with.memory;
  }
  Side side;
  SendQueue queue, back;
  WireFabric* wire = nullptr;
};

bool is_cut(const WireFabric& wire, WireAddress peer) {
  const Status status = wire.peer_status(peer);
  return !status.ok() && status.error().to_string().find("cut") != std::string::npos;
}

}  // namespace

TEST_CASE("the wire to a peer that does not let go of memory is cut, and no other", "[req:3.13]") {
  RendezvousPair pair;
  const bool of_source = GENERATE(false, true);
  INFO("memory that is read " << (of_source ? "from" : "into"));
  Side& one = of_source ? pair.a : pair.b;
  WireFabric& wire = *(of_source ? pair.wire_a : pair.wire_b);
  const WireAddress other = (of_source ? pair.wire_b : pair.wire_a)->address();
  Bystander bystander(pair, one, wire);
  const std::uint32_t kept_key = one.add_key(kAllAccess);
  REQUIRE(bystander.puts(one, 5));
  pair.begin_long_put(kMemoryBytes);
  one.nic.end_sending();  // waits for 0.1 s, not 5; peers are still answered
  CHECK(one.nic.deregister_memory(one.key).ok());
  CHECK(is_cut(wire, other));
  CHECK(wire.wait_descriptor() == -1);  // no thread sleeps on it any more
  CHECK(wire.status().ok());
  CHECK_FALSE(wire.is_reading(one.key));
  CHECK_FALSE(wire.can_read(other));
  CHECK(wire.flush(Deadline::after(std::chrono::seconds(20))).ok());
  one.fill(9);
  const auto kept = one.memory;
  // The bystander's connection has ended as well. It opens another once it has noticed. Earlier
  // messages would be lost, and retransmitted only after seconds.
  for (int i = 0; i < 200; ++i) {
    pair.turn();
    bystander.side.nic.progress();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  CHECK(one.memory == kept);
  CHECK(is_cut(wire, other));
  one.region.keys[0] = kept_key;
  CHECK(bystander.puts(one, 11));
}

TEST_CASE("after an abort nobody is waited for who does not let go of memory", "[req:3.13]") {
  RendezvousPair pair;
  const bool of_source = GENERATE(false, true);
  INFO("memory that is read " << (of_source ? "from" : "into"));
  Side& one = of_source ? pair.a : pair.b;
  pair.begin_long_put(kMemoryBytes);
  one.nic.end_sending();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(one.nic.deregister_memory(one.key).ok());
  CHECK(std::chrono::steady_clock::now() - begin <
        std::chrono::seconds(oriel::test::kSanitized ? 9 : 3));
  CHECK(is_cut(*(of_source ? pair.wire_a : pair.wire_b),
               (of_source ? pair.wire_b : pair.wire_a)->address()));
}

TEST_CASE("a NIC that ends waits for all of its memory as long as for one piece of it",
          "[req:3.13]") {
  RendezvousPair pair;
  Bystander bystander(pair, pair.b, *pair.wire_b);
  const std::uint32_t first_key = pair.b.key, second_key = pair.b.add_key(kAllAccess);
  const auto has_started = [&](std::uint32_t key) {
    return soon([&] {
      for (NicSoft* const nic : {&pair.a.nic, &pair.b.nic, &bystander.side.nic}) nic->progress();
      return pair.wire_b->is_reading(key);
    });
  };
  pair.b.region.keys[0] = second_key;
  REQUIRE(bystander.post(pair.b).outcome == QueueOutcome::done);
  REQUIRE(has_started(second_key));
  pair.b.region.keys[0] = first_key;
  REQUIRE(pair.put(0, 0, kMemoryBytes).outcome == QueueOutcome::done);
  // The bystander stands still from now on, so that its read stays in flight.
  REQUIRE(soon([&] {
    pair.turn();
    return pair.wire_b->is_reading(first_key);
  }));
  REQUIRE(pair.wire_b->is_reading(second_key));
  pair.b.nic.end_receiving();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(pair.b.nic.deregister_memory(second_key).ok());
  CHECK(pair.b.nic.deregister_memory(first_key).ok());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
}

TEST_CASE("a deregistration that waits for a rendezvous read blocks no other call of the NIC",
          "[req:3.13]") {
  RendezvousPair pair;
  pair.begin_long_put(kMemoryBytes);
  // The source's NIC waits for an answer, which comes only after this thread's other work.
  std::atomic<bool> deregistered = false;
  bool was_good = false;
  std::thread gives([&] {
    was_good = pair.a.nic.deregister_memory(pair.a.key).ok();
    deregistered = true;
  });
  for (int i = 0; i < 50; ++i) {
    const std::uint32_t key = pair.a.add_key(kLocalWrite);
    CHECK(pair.a.nic.deregister_memory(key).ok());
  }
  while (!deregistered) pair.b.nic.progress();
  gives.join();
  CHECK(was_good);
}
