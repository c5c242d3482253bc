// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <unistd.h>

#include "device/lsa_memory.hpp"
#include "kernels/plan/exchange.hpp"

/// Helpers for tests of exchanges among threads: ranks over the test's own memory, and the expected
/// results of collectives.
namespace oriel::test {

/// Ranks that are threads.
class Team {
 public:
  /// `channel_bytes` is for slots and determines their size: small slots make many steps. `reach`
  /// is how ranks read each other's memory outside of their slots.
  Team(int ranks, std::uint64_t channel_bytes,
       kernels::PeerProcess::Reach reach = kernels::PeerProcess::Reach::none)
      : Team(ranks,
             kernels::make_channel_layout(
                 kernels::Backend::host, ranks, 1, kLayoutPlace,
                 channel_bytes + kPacketRingBytes * static_cast<unsigned>(ranks - 1)),
             reach) {
    if (ranks % 2 == 0) layout_.packet_depth = 4;  // then few messages fill the ring
    layout_.most_packet_bytes = 5 * layout_.packet_bytes;
  }
  /// `layout` begins at kLayoutPlace.
  Team(int ranks, const kernels::ChannelLayout& layout, kernels::PeerProcess::Reach reach)
      : ranks_(ranks),
        processes_(static_cast<std::size_t>(ranks),
                   std::vector<kernels::PeerProcess>(static_cast<std::size_t>(ranks),
                                                     {reach, ::getpid()})),
        layout_(layout),
        memory_(ranks,
                kLayoutPlace + layout_.total_bytes + kBufferElements * sizeof(std::uint32_t)),
        mapping_(memory_),
        failures_(static_cast<std::size_t>(ranks)) {}
  static constexpr std::uint64_t kLayoutPlace = 4096;

  int ranks() const { return ranks_; }
  const kernels::ChannelLayout& layout() const { return layout_; }

  kernels::ExchangeFacts facts(int rank, int most_messages = kernels::kMostMessages) {
    kernels::ExchangeFacts facts;
    facts.most_ctas = 0;  // ranks are on CPUs
    facts.most_messages = most_messages;
    facts.memory.scratch = facts.memory.flat_base = reinterpret_cast<std::byte*>(mapping_.base());
    facts.memory.stride_4g = LsaMemory::kStride4g;
    facts.memory.rank = facts.memory.world_rank = rank;
    facts.memory.ranks = facts.world_size = ranks_;
    facts.team_index.resize(static_cast<std::size_t>(ranks_));
    std::iota(facts.team_index.begin(), facts.team_index.end(), std::int16_t{0});
    facts.memory.channels = layout_;
    facts.memory.processes = processes_[static_cast<std::size_t>(rank)].data();
    facts.memory.wait.timeout_ns = 20'000'000'000;
    facts.memory.failure = &failures_[static_cast<std::size_t>(rank)];
    return facts;
  }
  /// Returns memory of a rank that the other ranks can write.
  std::span<std::uint32_t> buffer(int rank) const {
    std::byte* const slot = reinterpret_cast<std::byte*>(mapping_.base()) +
                            static_cast<std::size_t>(rank) * LsaMemory::kSlotBytes;
    return {reinterpret_cast<std::uint32_t*>(slot + kLayoutPlace + layout_.total_bytes),
            kBufferElements};
  }
  const kernels::CallFailure& failure(int rank) const {
    return failures_[static_cast<std::size_t>(rank)];
  }

  /// Runs `body(rank)` on a thread for each rank; counts the ranks for which it returned true.
  int on_ranks(const std::function<bool(int)>& body) const {
    std::vector<std::thread> threads;
    std::vector<char> good(static_cast<std::size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] { good[static_cast<std::size_t>(rank)] = body(rank); });
    }
    for (auto& thread : threads) thread.join();
    return static_cast<int>(std::count(good.begin(), good.end(), 1));
  }

  /// Runs the launches of one rank with random pauses; returns false if a launch fails.
  static bool run(const kernels::LaunchList& launches, std::mt19937_64& random) {
    for (const kernels::ExchangeArguments& launch : launches) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      if (!kernels::run_exchange_on_host(launch)) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kBufferElements = 1 << 18;
  static constexpr std::uint64_t kPacketRingBytes = 12 << 10;

  int ranks_;
  std::vector<std::vector<kernels::PeerProcess>> processes_;  // by rank and peer
  kernels::ChannelLayout layout_;
  LsaMemory memory_;
  LsaMemory::Mapping mapping_;
  std::vector<kernels::CallFailure> failures_;
};

/// A collective of 32-bit integers whose inputs are `value(rank, i)`.
struct BlockCase {
  kernels::Collective collective;
  int root;
  std::uint64_t count;  ///< elements per block
  bool in_place;
};

inline std::uint32_t value(int rank, std::uint64_t i) {
  return static_cast<std::uint32_t>(rank + 1) * 1'000'003u + static_cast<std::uint32_t>(i) * 7u;
}

/// Returns the expected element `i` of the receive buffer of `rank`.
inline std::uint32_t expected(const BlockCase& one, int rank, std::uint64_t i) {
  const auto block = static_cast<int>(i / one.count);
  const std::uint64_t own_part = static_cast<std::uint64_t>(rank) * one.count;
  switch (one.collective) {
    case kernels::Collective::all_gather:
    case kernels::Collective::gather:
      return value(block, i % one.count);
    case kernels::Collective::broadcast:
      return value(one.root, i);
    case kernels::Collective::scatter:
      return value(one.root, own_part + i);
    default:  // an all-to-all
      return value(block, own_part + i % one.count);
  }
}

inline bool gets(const BlockCase& one, int rank) {
  return rank == one.root || one.collective != kernels::Collective::gather;
}

}  // namespace oriel::test
