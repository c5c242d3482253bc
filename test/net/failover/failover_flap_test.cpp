// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"
#include "net/failover/failover_workload.hpp"
#include "support/sanitized.hpp"

// F8 (3.14): a path that repeatedly fails and recovers, and the rate of its queue afterwards.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using std::chrono::milliseconds;

namespace {

struct Cost {
  std::uint64_t steps = 0;     // turns of all NICs, each of 100 us on the test's clock
  std::uint64_t requests = 0;  // requests sent on the wire
};

/// Returns the cost of 4096 writes of 512 bytes, with as many in flight as the ring has room for.
Cost cost_of(FailoverPair& pair, RawPoster& raw) {
  const auto requests = [&] {
    return traffic(*pair.a.nics[0]).requests + traffic(*pair.a.nics[1]).requests;
  };
  Cost cost;
  const std::uint64_t requests_before = requests(), end = raw.next() + 4096;
  const dq::LocalRange from{pair.a.region.address, pair.a.keys[0], 512};
  for (std::uint64_t done = FailoverPair::completed(pair.view()); done < end;
       done = FailoverPair::completed(pair.view())) {
    while (raw.next() < end && raw.next() - done < pair.view().depth) {
      raw.add(dq::transfer_wqe(dq::Opcode::write, raw.place(), dq::kSignalled,
                               pair.b.region.remote(Workload::kTarget * 8), from));
    }
    raw.ring();
    pair.step();
    ++cost.steps;
  }
  cost.requests = requests() - requests_before;
  return cost;
}

FailoverPair::Options quick() {
  FailoverPair::Options options;
  options.health.suspect_after = milliseconds(3);
  options.health.fail_after = milliseconds(12);
  options.health.probe_every = milliseconds(1);
  options.health.retry_first = milliseconds(5);
  options.health.retry_most = milliseconds(5);
  options.agreement.retransmit_interval = milliseconds(2);
  return options;
}

}  // namespace

TEST_CASE("after many flaps the rate is back, and nothing was lost or done twice",
          "[req:3.14][F8]") {
  FailoverPair pair(quick());
  RawPoster raw(pair.view());
  const Cost before = cost_of(pair, raw);
  const int flaps = oriel::test::repeats(1000, 4);
  std::uint64_t adds = 0, epochs = pair.epoch();
  for (int flap = 0; flap < flaps; ++flap) {
    INFO("flap " << flap << pair.states());
    // Breaks the path while work is in flight: a NIC of either side stops, or a wire is cut.
    const auto break_path = [&](bool broken) {
      FailoverRank& rank = flap % 2 == 0 ? pair.a : pair.b;
      if (flap % 4 < 2) {
        rank.faults[0]->cut = broken;
      } else if (broken) {
        stop_nic(*rank.nics[0]);
      } else {
        resume_nic(*rank.nics[0]);
      }
    };
    const auto add = [&](std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i, ++adds) {
        raw.add(dq::fetch_add_wqe(raw.place(), dq::kSignalled,
                                  pair.b.region.remote(Workload::kAtomics * 8), 1,
                                  {pair.a.region.address + (3000 + i) * 8, pair.a.keys[0], 8}));
      }
      raw.ring();
    };
    add(30);
    for (int i = 0; i < flap % 5; ++i) pair.step();
    break_path(true);
    add(10);
    REQUIRE(pair.run_until([&] { return pair.both_on(1) && pair.is_complete(raw.next()); }));
    REQUIRE(pair.b.memory[Workload::kAtomics] == adds);
    for (std::uint64_t i = 0; i < 10; ++i) REQUIRE(pair.a.memory[3000 + i] == adds - 10 + i);
    add(20);
    break_path(false);
    REQUIRE(pair.run_until([&] { return pair.both_on(0) && pair.is_complete(raw.next()); }));
    REQUIRE(pair.b.memory[Workload::kAtomics] == adds);
    // The queue left the path once and returned once.
    REQUIRE(pair.epoch() == epochs + 2);
    epochs += 2;
  }
  const Cost after = cost_of(pair, raw);
  // Compares turns and messages, which do not depend on the load of the machine.
  CHECK(static_cast<double>(before.steps) >= 0.95 * static_cast<double>(after.steps));
  CHECK(static_cast<double>(before.requests) >= 0.95 * static_cast<double>(after.requests));
}

TEST_CASE("a queue whose path works does not leave it while nobody would answer",
          "[req:3.14][F12]") {
  FailoverPair pair;
  // This end detects the recovery of the best path later than the peer.
  delay_queue(*pair.a.nics[0], pair.there->ends()[0].probe, milliseconds(30), pair.clock);
  RawPoster raw(pair.view());
  pair.a.faults[0]->cut = true;
  ring_adds(pair, raw, 1);
  REQUIRE(pair.run_until([&] { return pair.both_on(1) && pair.is_complete(1); }));
  pair.a.faults[0]->cut = false;
  REQUIRE(pair.run_until([&] { return pair.sent_back.is_usable(0); }));
  REQUIRE_FALSE(pair.sent_there.is_usable(0));
  pair.step();  // this end receives the peer's statement
  pair.post.cut = true;
  REQUIRE(pair.run_until([&] { return pair.sent_there.is_usable(0); }));
  pair.run_for(std::chrono::seconds(15));
  CHECK(pair.both_on(1));
  ring_adds(pair, raw, 20);
  REQUIRE(pair.run_until([&] { return pair.is_complete(21); }));
  CHECK(pair.b.memory[0] == 21);
  // The ends return to the best path once their statements arrive again.
  pair.post.cut = false;
  CHECK(pair.run_until([&] { return pair.both_on(0); }));
}
