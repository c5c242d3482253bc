// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <chrono>

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "base/system_table.hpp"
#include "net/fabric/fabric_faults.hpp"
#include "net/fabric/fabric_pair.hpp"
#include "support/sanitized.hpp"

// Wire that is closed or cut while libfabric is still working for it (3.13).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using oriel::test::repeats;

namespace {

constexpr std::size_t kAmidBytes = std::size_t{3} << 20;  // more than sockets hold

/// Two NICs amid a rendezvous read of a long write. The read has started. The more turns were made,
/// the more of the bytes have usually arrived.
struct Amid : FabricPair {
  explicit Amid(int turns, const WireFabric::Options& options = fabric_options())
      : FabricPair({}, options, kAmidBytes / 8) {
    begin_long_put(kAmidBytes);
    for (int i = 0; i < turns; ++i) turn();
  }
};

// Returns true if deregistered memory keeps the values written afterwards.
bool stays(Side& side, Amid& pair) {
  std::fill(side.memory.begin(), side.memory.end(), 7);
  for (int i = 0; i < 20; ++i) pair.turn();
  return std::all_of(side.memory.begin(), side.memory.end(), [](auto word) { return word == 7; });
}

}  // namespace

TEST_CASE("a wire ends during a rendezvous read from it or by it, no freed memory is written",
          "[req:3.13]") {
  // The sides' memory is freed before their wires: no later write may touch it.
  for (int turns = 0; turns < 6; turns += 2) {
    INFO(turns << " turns");
    const Amid pair(turns);
  }
}

TEST_CASE("a wire is cut during a rendezvous read, its memory does not change any more",
          "[req:3.13]") {
  for (int turns = 0; turns < repeats(8, 4); ++turns) {
    INFO(turns << " turns");
    FabricPlan plan;
    {
      // The cut end deregisters the memory of the read. Its endpoint is closed and opened again.
      Amid pair(turns, fabric_options(&planned_fabric()));
      const bool of_source = turns % 2 != 0;
      WireFabric& wire = *(of_source ? pair.wire_a : pair.wire_b);
      const std::size_t open = plan.open.size();
      const WireAddress other = (of_source ? pair.wire_b : pair.wire_a)->address();
      CHECK_FALSE(wire.cut({&other, 1}));
      CHECK(wire.status().ok());
      CHECK(plan.open.size() <= open);  // the memory of the read is deregistered
      CHECK(stays(of_source ? pair.a : pair.b, pair));
    }
  }
}

TEST_CASE("a wire whose connections cannot be ended is left as it is, and touches nothing",
          "[req:3.13]") {
  SystemTable table = real_system_table();
  SECTION("they do not end") {
    table.shutdown = [](int, int) { return 0; };
  }
  SECTION("they cannot be found") {
    table.fstat = [](int, struct stat*) { return errno = EOVERFLOW, -1; };
  }
  FabricPlan plan;
  {
    Amid pair(1, fabric_options(&planned_fabric()));
    const ScopedSystemTable scoped(table);
    const WireAddress other = pair.wire_a->address();
    CHECK(pair.wire_b->cut({&other, 1}));
    const Status status = pair.wire_b->status();
    REQUIRE_FALSE(status.ok());
    for (const char* word : {"could not be ended", "the wire was cut"}) {
      CHECK(status.error().to_string().find(word) != std::string::npos);
    }
    CHECK(pair.wire_b->wait_descriptor() == -1);
    CHECK(pair.wire_b->flush(Deadline::after(std::chrono::seconds(1))).ok());
    CHECK(stays(pair.b, pair));
  }
  CHECK_FALSE(plan.open.empty());
}
