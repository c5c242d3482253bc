// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <optional>
#include <string>

#include <catch2/catch.hpp>

#include "comm/support/direct_copies.hpp"
#include "comm/support/network_of.hpp"
#include "comm/support/network_ranks.hpp"
#include "net/support/nic_faults.hpp"

// Direct copies: nodes of one machine map each other's windows, so bytes between them skip the wire
// (3.9).
namespace oriel::test {
namespace {

std::uint64_t bytes_by_wire(const Communicator& comm) {
  return net::test::traffic(network_of(comm).nic()).payload_bytes;
}

/// Returns the number of shared-memory mappings of this process.
int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("windows of near nodes are mapped as long as both sides have them", "[req:3.9]") {
  for (const bool direct : {true, false}) {
    const WithDirectCopies copies(direct);
    run_on_nodes({{1, 1, 1}}, {}, [&](TestRanks& test_ranks) {
      auto comm = join(test_ranks);
      auto kernels = must(comm.device_comm(kWorld));
      auto memory = must(comm.allocate(std::size_t{1} << 20));
      test_ranks.barrier();
      const int before = shared_mappings();
      {
        auto window = must(comm.register_window(memory));
        // One mapping for the team's window; with direct copies, one or more for each rank of other
        // nodes.
        const int made = shared_mappings() - before;
        test::require(direct ? made >= 3 : made == 1, "mappings: " + std::to_string(made));
        test_ranks.barrier();
      }
      test::require(shared_mappings() == before, "mappings are left behind");
      test_ranks.barrier();
    });
  }
}

TEST_CASE("windows that begin inside an allocation are mapped where they begin", "[req:3.9]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    auto kernels = must(comm.device_comm(kWorld));
    auto memory = must(comm.allocate(std::size_t{4} << 20));
    constexpr std::size_t kSkip = 12'288, kBytes = 100'000;
    auto* const base = static_cast<std::uint8_t*>(memory.data());
    auto window = must(comm.register_window(MemoryRange{base + kSkip, 2 * kBytes}));
    const int me = test_ranks.first(), peer = 1 - me;
    for (std::size_t i = 0; i < kBytes; ++i) base[kSkip + i] = pattern(me, 3, i);
    const device::Thread self;
    const auto view = window.view();
    require(device::world_put_signal(self, kernels.view(), peer, view, kBytes, view, 0, kBytes, 0)
                .outcome,
            "the put");
    require(device::wait_signal(self, kernels.view(), 0, 1, peer), "the signal");
    for (std::size_t i = 0; i < kBytes; ++i) {
      test::require(base[kSkip + kBytes + i] == pattern(peer, 3, i), "what the peer has put");
    }
    test::require(bytes_by_wire(comm) < kBytes, "a direct copy");
    device::WorldBarrier<device::Thread> barrier({}, kernels.view(), 0);
    require(barrier.sync(), "the barrier");
  });
}

TEST_CASE("a window that the peer has deregistered is still a source of puts to it", "[req:3.9]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    auto kernels = must(comm.device_comm(kWorld));
    constexpr std::size_t kBytes = 300'000;
    auto from = must(comm.allocate(kBytes)), to = must(comm.allocate(kBytes));
    std::optional<Window> source = must(comm.register_window(from));
    auto target = must(comm.register_window(to));
    const int me = test_ranks.first(), peer = 1 - me;
    auto* const bytes = static_cast<std::uint8_t*>(from.data());
    const device::Thread self;
    // Uses the world barrier, because the thread sanitizer cannot see synchronization by other
    // processes.
    device::WorldBarrier<device::Thread> barrier({}, kernels.view(), 0);
    for (std::uint64_t round = 1; round <= 3; ++round) {
      for (std::size_t i = 0; i < kBytes; ++i) {
        bytes[i] = pattern(me, static_cast<unsigned>(round), i);
      }
      if (round == 2 && me == 1) {
        source.reset();
      }
      test::require(round == 3 || bytes_by_wire(comm) < kBytes, "a direct copy");
      require(barrier.sync(), "the barrier");
      if (me == 0) {
        require(device::world_put_signal(self, kernels.view(), peer, target.view(), 0,
                                         source->view(), 0, kBytes, 0)
                    .outcome,
                "the put");
        require(device::world_flush(self, kernels.view(), peer), "its end");
      } else {
        require(device::wait_signal(self, kernels.view(), 0, round, peer), "the signal");
        for (std::size_t i = 0; i < kBytes; ++i) {
          test::require(static_cast<std::uint8_t*>(to.data())[i] ==
                            pattern(peer, static_cast<unsigned>(round), i),
                        "what the peer has put");
        }
      }
      require(barrier.sync(), "the barrier");
    }
    test::require(bytes_by_wire(comm) / kBytes == (me == 0 ? 2 : 0), "no other one");
  });
}

}  // namespace oriel::test
