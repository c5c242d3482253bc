// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "nccl.h"

#include "comm/communicator/collective_calls.hpp"
#include "comm/group/comm_entry.hpp"
#include "support/seed.hpp"

/// Collectives within one node and among several, compared with a reference (3.16, 3.17).
namespace oriel::test {
namespace {

/// Returns all distributions of the ranks over nodes in which some node's ranks are not
/// consecutive. Nodes are numbered by first occurrence.
std::vector<Nodes> splits_not_in_runs(int ranks) {
  std::vector<Nodes> all{{0}};
  for (int rank = 1; rank < ranks; ++rank) {
    std::vector<Nodes> longer;
    for (const Nodes& nodes : all) {
      const int used = *std::max_element(nodes.begin(), nodes.end()) + 1;
      for (int node = 0; node <= used; ++node) {
        longer.push_back(nodes);
        longer.back().push_back(node);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [](const Nodes& nodes) { return std::is_sorted(nodes.begin(), nodes.end()); });
  return all;
}

}  // namespace

TEST_CASE("every split of up to 6 ranks into nodes gives the same bits", "[req:3.17][req:5.12]") {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  for (int ranks = 2; ranks <= 6; ++ranks) {
    std::vector<Nodes> splits;
    for (unsigned cuts = 0; cuts < 1u << (ranks - 1); ++cuts) {
      Nodes nodes{0};
      for (int rank = 1; rank < ranks; ++rank) {
        nodes.push_back(nodes.back() + static_cast<int>(cuts >> (rank - 1) & 1));
      }
      if (scaled(100) >= 100 || mix(seed, cuts) % 3 == 0) splits.push_back(nodes);
    }
    // Adds some of the 215 other distributions; ORIEL_TEST_PERCENT=6000 adds all.
    std::vector<Nodes> mixed = splits_not_in_runs(ranks);
    std::shuffle(mixed.begin(), mixed.end(), rng);
    mixed.resize(std::min(mixed.size(), static_cast<std::size_t>(std::max(scaled(3), 1))));
    splits.insert(splits.end(), mixed.begin(), mixed.end());
    const Environment common(Variables{{"ORIEL_DETERMINISTIC", "1"}, {"ORIEL_CHUNK", "1024"}});
    check_all_ok(run_ranks(LaunchMode::processes, ranks, [&](TestRanks& test_ranks) {
      for (const Nodes& nodes : splits) {
        const Environment own(on_node(nodes, test_ranks));
        Caller caller(test_ranks, 9'000);
        for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter}) {
          for (const DataType type : {DataType::f32, DataType::bf16}) {
            for (const std::size_t count : {200, 2'001}) {
              const Call call{.kind = kind, .type = type, .count = count, .seed = seed + count};
              const std::uint64_t hash = caller.check(call, true);
              if (kind == Kind::all_reduce) agree(test_ranks, hash, text_of(nodes) + call.text());
            }
          }
        }
        test_ranks.barrier();
      }
    }));
  }
}

TEST_CASE("collectives of large messages, whose rounds overlap, are right on each rank",
          "[req:3.16]") {
  const std::uint64_t seed = test_seed();
  const auto body = [&](TestRanks& test_ranks) {
    const auto most = static_cast<std::size_t>(scaled(150'000));
    Caller caller(test_ranks, (most + 8) * 4);
    std::uint64_t step = seed;
    for (const Kind kind : kKinds) {
      for (const DataType type : {DataType::f32, DataType::bf16}) {
        for (const Buffers buffers : {Buffers::apart, Buffers::window_in_place,
                                      Buffers::input_in_window, Buffers::some_in_place}) {
          const std::size_t count = most / (type == DataType::f32 ? 1 : 3) - step % 1000;
          caller.check(
              {.kind = kind, .type = type, .count = count, .buffers = buffers, .seed = ++step},
              false);
        }
      }
    }
    test_ranks.barrier();
  };
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 1}, Nodes{0, 0, 0}}) {
    run_on(nodes, {}, body, __LINE__);
  }
  run_on({0, 1, 0}, {{"ORIEL_DETERMINISTIC", "1"}}, body, __LINE__);
  run_on({0, 1, 1}, {{"ORIEL_SCRATCH_SIZE", "1M"}}, body, __LINE__);
}

TEST_CASE("data sent from a window do not pass through the scratch memory", "[req:3.16]") {
  constexpr std::size_t kScratchBytes = 4 << 20;
  constexpr std::size_t kWords = 4096;  // bytes of a doorbell and other words, which may change
  constexpr std::size_t kUnit = 1024;   // elements
  constexpr std::size_t kCount = 64 * kUnit;
  const auto body = [&](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto internal = must(comm::find_communicator(comm.handle()));
    const device::CommView view = internal->calls().scratch_view();
    const auto* const scratch =
        reinterpret_cast<const std::int32_t*>(view.control(view.lsa_rank, kWords));
    const auto memory = must(comm.allocate(4 * kCount * sizeof(std::int32_t)));
    const auto window = must(comm.register_window(memory));
    std::vector<std::int32_t> plain(4 * kCount);
    std::int32_t mark = 0x5eed0000 + test_ranks.first();
    for (const Kind kind : kKinds) {
      for (const bool in_window : {false, true}) {
        auto* const input = in_window ? static_cast<std::int32_t*>(memory.data()) : plain.data();
        auto* const output = input + 2 * kCount;
        mark += 256;
        std::fill(input, input + 2 * kCount, mark);
        const Status done = collective(
            comm, kind, {.input = input, .output = output, .count = kCount, .type = DataType::i32});
        require(done.ok(), "a collective");
        test_ranks.barrier();
        const auto marks = static_cast<std::size_t>(
            std::count(scratch, scratch + (kScratchBytes - kWords) / sizeof *scratch, mark));
        // Expected: all units that fit, those of the last two rounds, or none.
        const std::size_t units = !in_window ? 6 : kind == Kind::all_reduce ? 0 : 2;
        require(marks == units * kUnit,
                fmt::format("{}, in a window {}: {} copied elements",
                            kKindNames[static_cast<int>(kind)], in_window, marks));
        test_ranks.barrier();
      }
    }
  };
  run_on({0, 1}, {{"ORIEL_CHUNK", "4096"}, {"ORIEL_SCRATCH_SIZE", "4M"}}, body, __LINE__);
}

TEST_CASE("small calls follow each other whoever is late, more than there are regions",
          "[req:3.16]") {
  const std::uint64_t seed = test_seed();
  const auto body = [&](TestRanks& test_ranks) {
    Caller caller(test_ranks, 5'000 * 4);
    const int calls = scaled(240);
    for (int i = 0; i < calls; ++i) {
      const std::uint64_t drawn = mix(seed, static_cast<std::uint64_t>(i));
      // Sizes: inline in one WQE, read by the NIC, and now and then several rounds.
      const std::size_t counts[] = {1 + drawn / 64 % 7, drawn / 64 % 500, 5'000};
      const Call call{.kind = static_cast<Kind>(drawn % 3),
                      .type = drawn / 4 % 2 == 0 ? DataType::f32 : DataType::u8,
                      .op = drawn / 8 % 4 == 0 ? ReduceOp::premul_sum : ReduceOp::sum,
                      .count = counts[i % 16 == 7 ? 2 : drawn / 32 % 2],
                      .buffers = static_cast<Buffers>(drawn / 65'536 % kBuffers),
                      .seed = drawn};
      const auto late = static_cast<int>(drawn >> 40) % (2 * test_ranks.size());
      if (test_ranks.first() == late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      caller.check(call, false);
    }
    test_ranks.barrier();
  };
  for (const Nodes& nodes :
       {Nodes{0, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 2, 0, 1}, Nodes{0, 1, 0, 1, 0, 1, 0, 1}}) {
    run_on(nodes, {}, body, __LINE__);
  }
  run_on({0, 1, 0}, {{"ORIEL_DETERMINISTIC", "1"}}, body, __LINE__);
}

TEST_CASE("a rank may leave as soon as its last call has ended", "[req:1.12][req:3.16]") {
  const auto body = [](TestRanks& test_ranks) {
    for (int i = 0; i < 12; ++i) {
      Caller caller(test_ranks, 40'000);
      if (test_ranks.first() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      caller.check({.kind = static_cast<Kind>(i % 3),
                    .count = i < 6 ? std::size_t{10} : std::size_t{9'000},
                    .seed = static_cast<std::uint64_t>(i)},
                   false);
    }
  };
  for (const Nodes& nodes : {Nodes{0, 1, 1}, Nodes{0, 0, 0}}) run_on(nodes, {}, body, __LINE__);
}

TEST_CASE("two ranks of one thread on each of two nodes, through groups of the C interface",
          "[req:3.16]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const int node = test_ranks.first();
    const Environment own(on_node({0, 1}, test_ranks));
    const ncclUniqueId id = test_ranks.next_id();
    ncclComm_t comms[2] = {};
    const auto together = [&](const char* what, const auto& call) {
      require(ncclGroupStart(), "ncclGroupStart");
      for (int i = 0; i < 2; ++i) require(call(i, 2 * node + i), what);
      require(ncclGroupEnd(), what);
    };
    together("ncclCommInitRank",
             [&](int i, int rank) { return ncclCommInitRank(&comms[i], 4, id, rank); });
    std::vector<std::int32_t> data[2], all[2], part[2];
    for (int i = 0; i < 2; ++i) {
      data[i].assign(4'000, 2 * node + i + 1);
      all[i].assign(16'000, 0);
      part[i].assign(1'000, 0);
    }
    together("three collectives", [&](int i, int) {
      ncclAllGather(data[i].data(), all[i].data(), 4'000, ncclInt32, comms[i], nullptr);
      pncclReduceScatter(data[i].data(), part[i].data(), 1'000, ncclInt32, ncclMax, comms[i],
                         nullptr);
      return ncclAllReduce(data[i].data(), data[i].data(), 4'000, ncclInt32, ncclSum, comms[i],
                           nullptr);
    });
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 16'000; ++k) {
        require(all[i][static_cast<std::size_t>(k)] == k / 4'000 + 1, "what was gathered");
      }
      for (const std::int32_t value : part[i]) require(value == 4, "the largest");
      for (const std::int32_t value : data[i]) require(value == 10, "the sum");
      require(ncclCommDestroy(comms[i]), "ncclCommDestroy");
    }
  }));
}

TEST_CASE("ranks that are threads of each node's process get right sums and averages",
          "[req:3.16]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const int node = test_ranks.first();
    const Environment own(on_node({0, 1}, test_ranks));
    const ncclUniqueId bytes = test_ranks.next_id();
    UniqueId id;
    std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
    std::string wrong[2];
    const auto rank_of = [&](int i) {
      auto comm = must(Communicator::init(id, 2 * node + i, 4));
      std::vector<float> data(10'000, static_cast<float>(2 * node + i + 1));
      for (int call = 0; call < 20; ++call) {
        const Status done = comm.all_reduce({.input = data.data(),
                                             .output = data.data(),
                                             .count = data.size(),
                                             .op = call == 0 ? ReduceOp::sum : ReduceOp::avg});
        if (!done.ok()) wrong[i] = done.error().to_string();
      }
      if (data.front() != 10 || data.back() != 10) wrong[i] += " not the sum";
    };
    {
      const std::jthread other([&] { rank_of(1); });
      rank_of(0);
    }
    require(wrong[0].empty() && wrong[1].empty(), wrong[0] + wrong[1]);
  }));
}

}  // namespace oriel::test
