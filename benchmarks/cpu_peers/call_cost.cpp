// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <vector>

#include "nccl.h"

#include "support/bench.hpp"

/// Measures the cost of a call of a CPU rank without its waits. One thread makes the calls of both
/// ranks of a communicator, in an order in which no call waits. For example, a send returns before
/// its message is received.
namespace oriel::bench {
namespace {

constexpr std::size_t kWindowBytes = 64 << 10;

void require(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "call_cost: %s: %s\n", what, ncclGetLastError(nullptr));
  std::exit(1);
}

/// Memory of both ranks, in which all communicators register the same windows.
class Memory {
 public:
  explicit Memory(std::int64_t windows) : windows_(static_cast<std::size_t>(windows)) {
    for (void*& base : bases_) require(ncclMemAlloc(&base, windows_ * kWindowBytes), "memory");
  }
  ~Memory() {
    for (void* base : bases_) static_cast<void>(ncclMemFree(base));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::size_t windows() const { return windows_; }
  std::byte* at(std::size_t rank, std::size_t window) const {
    return static_cast<std::byte*>(bases_[rank]) + window * kWindowBytes;
  }

 private:
  std::size_t windows_;
  std::array<void*, 2> bases_{};
};

/// Both ranks of a communicator, in this process, and their windows.
class BothRanks {
 public:
  explicit BothRanks(const Memory& memory) : windows_(memory.windows()) {
    ncclUniqueId id;
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    in_group([&](std::size_t rank) {
      return ncclCommInitRank(&comms_[rank], 2, id, static_cast<int>(rank));
    });
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      in_group([&](std::size_t rank) {
        return ncclCommWindowRegister(comms_[rank], memory.at(rank, i), kWindowBytes,
                                      &windows_[i][rank], NCCL_WIN_COLL_SYMMETRIC);
      });
    }
  }
  ~BothRanks() {
    for (const auto& window : windows_) {
      for (std::size_t rank = 0; rank < 2; ++rank) {
        static_cast<void>(ncclCommWindowDeregister(comms_[rank], window[rank]));
      }
    }
    static_cast<void>(ncclGroupStart());
    for (ncclComm_t comm : comms_) static_cast<void>(ncclCommDestroy(comm));
    static_cast<void>(ncclGroupEnd());
  }
  BothRanks(const BothRanks&) = delete;
  BothRanks& operator=(const BothRanks&) = delete;

  ncclComm_t operator[](std::size_t rank) const { return comms_[rank]; }

 private:
  template <class Call>
  static void in_group(const Call& call) {
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t rank = 0; rank < 2; ++rank) require(call(rank), "a call of the set-up");
    require(ncclGroupEnd(), "ncclGroupEnd");
  }

  std::array<ncclComm_t, 2> comms_{};
  std::vector<std::array<ncclWindow_t, 2>> windows_;
};

/// Two matching calls, one of each rank.
struct Pair {
  const char* name;
  std::function<void(const BothRanks& ranks, std::size_t bytes)> make;
};

/// Calls in the middle window. Each rank sends its first half, and receives into its second one.
std::vector<Pair> pairs_of(const Memory& memory) {
  const std::size_t middle = memory.windows() / 2;
  const std::array from = {memory.at(0, middle), memory.at(1, middle)};
  const std::array to = {from[0] + kWindowBytes / 2, from[1] + kWindowBytes / 2};
  const auto send = [from](const BothRanks& ranks, std::size_t bytes) {
    require(ncclSend(from[0], bytes, ncclUint8, 1, ranks[0], nullptr), "ncclSend");
  };
  const auto receive = [to](const BothRanks& ranks, std::size_t bytes) {
    require(ncclRecv(to[1], bytes, ncclUint8, 0, ranks[1], nullptr), "ncclRecv");
  };
  const auto in_group = [](const auto& call, const BothRanks& ranks, std::size_t bytes) {
    require(ncclGroupStart(), "ncclGroupStart");
    call(ranks, bytes);
    require(ncclGroupEnd(), "ncclGroupEnd");
  };
  return {
      {"send, receive",
       [=](const BothRanks& ranks, std::size_t bytes) {
         send(ranks, bytes);
         receive(ranks, bytes);
       }},
      {"send, receive, each in a group",
       [=](const BothRanks& ranks, std::size_t bytes) {
         in_group(send, ranks, bytes);
         in_group(receive, ranks, bytes);
       }},
      {"broadcast",
       [=](const BothRanks& ranks, std::size_t bytes) {
         for (std::size_t rank = 0; rank < 2; ++rank) {
           require(ncclBroadcast(from[rank], to[rank], bytes, ncclUint8, 0, ranks[rank], nullptr),
                   "broadcast");
         }
       }},
      {"scatter",
       [=](const BothRanks& ranks, std::size_t bytes) {
         for (std::size_t rank = 0; rank < 2; ++rank) {
           require(ncclScatter(from[rank], to[rank], bytes, ncclUint8, 0, ranks[rank], nullptr),
                   "scatter");
         }
       }},
  };
}

struct Case {
  std::int64_t windows;
  std::int64_t communicators;
  bool in_turn = false;  ///< calls all communicators in turn, else the last one
};

/// Returns the time per call of each round, in ns. A round calls all communicators in turn, or
/// the last one only.
std::vector<double> measure(const Pair& pair, const std::deque<BothRanks>& all, bool in_turn,
                            std::size_t bytes, std::int64_t rounds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPairs = 128;
  const std::size_t first = in_turn ? 0 : all.size() - 1;
  const auto round = [&] {
    std::size_t turn = first;
    const auto begin = Clock::now();
    for (int i = 0; i < kPairs; ++i) {
      pair.make(all[turn], bytes);
      if (++turn == all.size()) turn = first;
    }
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / (2 * kPairs);
  };
  // The first use of each slot of a channel takes longer.
  for (std::size_t i = 0; i < 20 * (all.size() - first); ++i) static_cast<void>(round());
  std::vector<double> samples;
  for (std::int64_t i = 0; i < rounds; ++i) samples.push_back(round());
  return samples;
}

void measure_case(Bench& bench, const Case& one, const std::vector<std::int64_t>& sizes,
                  std::int64_t rounds) {
  const Memory memory(one.windows);
  std::deque<BothRanks> all;
  for (std::int64_t i = 0; i < one.communicators; ++i) all.emplace_back(memory);
  const auto pairs = pairs_of(memory);
  for (const std::int64_t bytes : sizes) {
    for (const Pair& pair : pairs) {
      auto samples = measure(pair, all, one.in_turn, static_cast<std::size_t>(bytes), rounds);
      std::sort(samples.begin(), samples.end());
      bench.result(pair.name,
                   Fields()
                       .add("bytes", bytes)
                       .add("windows", one.windows)
                       .add("communicators", one.communicators)
                       .add("called", one.in_turn ? one.communicators : 1),
                   "ns", samples[samples.size() / 2], Fields().add("least", samples.front()));
    }
  }
}

int run(int argc, char** argv) {
  Bench bench("call_cost",
              "Measures what a call of a CPU rank costs besides its waits, with few and many "
              "windows and communicators: one thread makes the calls of two ranks in an order in "
              "which none waits. Calls one communicator, or all in turn.\n\n"
              "Exit status: 0; 1 if a call fails; 2 for wrong flags.");
  std::int64_t rounds = 400;
  std::vector<std::int64_t> sizes{8, 64, 1024};
  std::int64_t windows = 10'000;
  std::vector<std::int64_t> communicators{4, 16, 64};
  bench.flag("--rounds", rounds, 1, 1'000'000, "rounds of 128 calls of each rank");
  bench.flag("--sizes", sizes, 1, kWindowBytes / 4, "bytes of a message or block");
  bench.flag("--windows", windows, 1, 100'000, "the many windows");
  bench.flag("--communicators", communicators, 1, 1024, "numbers of communicators");
  if (const auto status = bench.parse(argc, argv)) return *status;
  ::setenv("ORIEL_BACKEND", "host", 1);
  const std::int64_t most = *std::max_element(communicators.begin(), communicators.end());
  std::vector<Case> cases{{1, 1}, {windows, 1}, {1, most}};
  for (const std::int64_t count : communicators) cases.push_back({1, count, true});
  for (const Case& one : cases) measure_case(bench, one, sizes, rounds);
  return 0;
}

}  // namespace
}  // namespace oriel::bench

int main(int argc, char** argv) {
  return oriel::bench::run(argc, argv);
}
