// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "nccl.h"

#include "support/bench.hpp"

/// Measures the cost of a call of a CPU rank without its waits. One thread makes the calls of both
/// ranks of a communicator, in an order in which no call waits. For example, a send returns before
/// its message is received.
namespace oriel::bench {
namespace {

void require(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "call_cost: %s: %s\n", what, ncclGetLastError(nullptr));
  std::exit(1);
}

/// Both ranks of a communicator, in this process.
class BothRanks {
 public:
  BothRanks() {
    ncclUniqueId id;
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    require(ncclGroupStart(), "ncclGroupStart");
    for (int rank = 0; rank < 2; ++rank) {
      require(ncclCommInitRank(&comms_[rank], 2, id, rank), "ncclCommInitRank");
    }
    require(ncclGroupEnd(), "starting two ranks");
  }
  ~BothRanks() {
    static_cast<void>(ncclGroupStart());
    for (ncclComm_t comm : comms_) static_cast<void>(ncclCommDestroy(comm));
    static_cast<void>(ncclGroupEnd());
  }
  BothRanks(const BothRanks&) = delete;
  BothRanks& operator=(const BothRanks&) = delete;

  ncclComm_t operator[](int rank) const { return comms_[rank]; }

 private:
  ncclComm_t comms_[2] = {};
};

/// Two matching calls, one of each rank.
struct Pair {
  const char* name;
  std::function<void(std::size_t bytes)> make;
};

std::vector<Pair> pairs_of(const BothRanks& ranks, std::byte* from, std::byte* to) {
  const auto send = [&ranks, from](std::size_t bytes) {
    require(ncclSend(from, bytes, ncclUint8, 1, ranks[0], nullptr), "ncclSend");
  };
  const auto receive = [&ranks, to](std::size_t bytes) {
    require(ncclRecv(to, bytes, ncclUint8, 0, ranks[1], nullptr), "ncclRecv");
  };
  const auto in_group = [](const auto& call, std::size_t bytes) {
    require(ncclGroupStart(), "ncclGroupStart");
    call(bytes);
    require(ncclGroupEnd(), "ncclGroupEnd");
  };
  return {
      {"send, receive",
       [=](std::size_t bytes) {
         send(bytes);
         receive(bytes);
       }},
      {"send, receive, each in a group",
       [=](std::size_t bytes) {
         in_group(send, bytes);
         in_group(receive, bytes);
       }},
      {"broadcast",
       [&ranks, from, to](std::size_t bytes) {
         for (int rank = 0; rank < 2; ++rank) {
           require(ncclBroadcast(from, to, bytes, ncclUint8, 0, ranks[rank], nullptr), "broadcast");
         }
       }},
      {"scatter",
       [&ranks, from, to](std::size_t bytes) {
         for (int rank = 0; rank < 2; ++rank) {
           require(ncclScatter(from, to, bytes, ncclUint8, 0, ranks[rank], nullptr), "scatter");
         }
       }},
  };
}

/// Returns the time per call of each round, in ns.
std::vector<double> measure(const Pair& pair, std::size_t bytes, std::int64_t rounds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPairs = 100;
  const auto round = [&] {
    const auto begin = Clock::now();
    for (int i = 0; i < kPairs; ++i) pair.make(bytes);
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / (2 * kPairs);
  };
  for (int i = 0; i < 20; ++i) static_cast<void>(round());
  std::vector<double> samples;
  for (std::int64_t i = 0; i < rounds; ++i) samples.push_back(round());
  return samples;
}

int run(int argc, char** argv) {
  Bench bench("call_cost",
              "Measures what a call of a CPU rank costs besides its waits: one thread makes the "
              "calls of two ranks in an order in which none waits.\n\n"
              "Exit status: 0; 1 if a call fails; 2 for wrong flags.");
  std::int64_t rounds = 400;
  std::vector<std::int64_t> sizes{8, 64, 1024};
  bench.flag("--rounds", rounds, 1, 1'000'000, "rounds of 100 calls of each rank");
  bench.flag("--sizes", sizes, 1, 16 << 10, "bytes of a message");
  if (const auto status = bench.parse(argc, argv)) return *status;
  ::setenv("ORIEL_BACKEND", "host", 1);
  const BothRanks ranks;
  std::vector<std::byte> from(32 << 10);
  std::vector<std::byte> to(32 << 10);
  for (const std::int64_t bytes : sizes) {
    for (const Pair& pair : pairs_of(ranks, from.data(), to.data())) {
      std::vector<double> samples = measure(pair, static_cast<std::size_t>(bytes), rounds);
      std::sort(samples.begin(), samples.end());
      bench.result(pair.name, Fields().add("bytes", bytes), "ns", samples[samples.size() / 2],
                   Fields().add("least", samples.front()));
    }
  }
  return 0;
}

}  // namespace
}  // namespace oriel::bench

int main(int argc, char** argv) {
  return oriel::bench::run(argc, argv);
}
