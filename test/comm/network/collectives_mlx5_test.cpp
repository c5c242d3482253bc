// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/communicator/collective_calls.hpp"
#include "comm/support/adapter_ranks.hpp"
#include "net/support/nic_faults.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Collectives among nodes whose queues are executed by mlx5 adapters (3.11, 3.16). Runs on the
/// model of verbs, and so proves nothing about hardware.
namespace oriel::test {
namespace {

/// Makes calls of all kinds and buffer placements, with small messages and with several rounds.
void call_some(TestRanks& test_ranks, Adapter& adapter, std::uint64_t seed) {
  constexpr std::array<std::size_t, 5> kCounts = {1, 63, 777, 5000, 40'000};
  constexpr std::size_t kMost = 40'000;
  Caller caller(test_ranks, (kMost + 8) * 8);
  std::uint64_t step = 0;
  for (const Kind kind : kKinds) {
    for (const std::size_t count : kCounts) {
      for (std::uint64_t buffers = 0; buffers < kBuffers; ++buffers) {
        const std::uint64_t drawn = mix(seed, ++step);
        const Call call{.kind = kind,
                        .type = kTypes[drawn % std::size(kTypes)],
                        .op = kOps[drawn / 64 % std::size(kOps)],
                        .count = count,
                        .buffers = static_cast<Buffers>(buffers),
                        .skew = drawn / 4096 % 8,
                        .seed = drawn};
        // In place, the result overwrites data that the adapter has read. The thread sanitizer
        // cannot see this order, see Adapter::sync().
        const bool in_place =
            call.buffers == Buffers::window_in_place || call.buffers == Buffers::some_in_place;
        if (kThreadSanitized && in_place) continue;
        adapter.sync();
        const std::uint64_t hash = caller.check(call, false);
        if (kind == Kind::all_reduce) agree(test_ranks, hash, call.text());
      }
    }
  }
}

}  // namespace

TEST_CASE("collectives among nodes are right when adapters execute the queues",
          "[req:3.11][req:3.16]") {
  const std::uint64_t seed = test_seed();
  for (const Nodes& nodes : {Nodes{0, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 1}}) {
    run_on_adapters(
        nodes, {}, {{"ORIEL_CHUNK", "16K"}},
        [&](TestRanks& test_ranks, Adapter& adapter) { call_some(test_ranks, adapter, seed); });
  }
}

TEST_CASE("collectives are right when a processor rings the adapters' doorbells",
          "[req:3.11][req:3.16]") {
  run_on_adapters(
      {0, 1}, {.rung_by_processor = true}, {},
      [&](TestRanks& test_ranks, Adapter& adapter) { call_some(test_ranks, adapter, 7); });
}

TEST_CASE("an adapter's error in the middle of a collective names the peer", "[req:3.11]") {
  // The first syndrome: the peer does not answer. The second: the peer could not execute the
  // request.
  const auto syndrome = GENERATE(net::Syndrome::transport_retry, net::Syndrome::remote_operation);
  run_on_adapters({0, 0, 1, 1}, {}, {}, [&](TestRanks& test_ranks, Adapter& adapter) {
    auto comm = join(test_ranks);
    std::vector<float> data(100'000, 1);
    const auto sum = [&] {
      return comm.all_reduce({.input = data.data(), .output = data.data(), .count = data.size()});
    };
    for (int call = 0; call < 3; ++call) require(sum().ok(), "a good call");
    require(data.front() == 64 && data.back() == 64, "the sum");
    test_ranks.barrier();
    if (test_ranks.first() == 0) {
      // Rank 0 has queues to ranks 2 and 3.
      net::test::NicFaults faults;
      faults.fails.push_back({.syndrome = syndrome});
      net::test::set_faults(adapter.nic(), std::move(faults));
    }
    test_ranks.barrier();
    Status done;
    for (int call = 0; call < 10 && done.ok(); ++call) done = sum();
    require(!done.ok(), "no error");
    const std::string text = done.error().to_string();
    const int origin = done.error().origin_rank();
    require(origin == 2 || origin == 3, text);
    require_words(text, {fmt::format("the queue from rank 0 to rank {} has failed", origin),
                         "mlx5_0 port 1"});
    // Several errors may have occurred; the text shows the first or the last.
    require(text.find(fmt::format("syndrome {:#04x}", static_cast<int>(syndrome))) !=
                    std::string::npos ||
                text.find("syndrome 0x05") != std::string::npos,
            text);
    test_ranks.barrier();
  });
}

}  // namespace oriel::test
