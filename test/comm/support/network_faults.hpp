// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "oriel/device/group.hpp"
#include "oriel/device/world_barrier.hpp"

#include "api/api_ranks.hpp"
#include "comm/support/fault_outcome.hpp"
#include "comm/support/held.hpp"

/// Starts a communicator with a network while calls of one rank fail, and collects what all ranks
/// saw.
namespace oriel::test {

/// Result of a run on one rank.
struct Seen {
  bool ok = true;
  int origin = -1;
  std::string text;
};

inline Seen seen_of(const Error& error) {
  return {false, error.origin_rank(), error.to_string()};
}

/// Starts a communicator and its network between `arm` and `disarm`, then uses it in world
/// barriers.
inline Seen live(TestRanks& test_ranks, const std::function<void()>& arm = {},
                 const std::function<void()>& disarm = {}) {
  const ncclUniqueId bytes = test_ranks.next_id();
  UniqueId id;
  std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
  test_ranks.barrier();  // no rank is still in an earlier call
  if (arm) arm();
  auto made = Communicator::init(id, test_ranks.first(), test_ranks.size());
  if (!made.ok() && disarm) disarm();
  if (!made.ok()) return seen_of(made.error());
  Communicator& comm = made.value();
  auto kernels = comm.device_comm({.barrier_slots = 1, .world = true});
  if (disarm) disarm();
  if (!kernels.ok()) return seen_of(kernels.error());
  device::WorldBarrier<device::Thread> barrier({}, kernels.value().view(), 0);
  // A thread of the communicator may notice a failure after its rank has arrived at the first
  // barrier. Other ranks may leave that barrier then, so a second barrier follows.
  if (barrier.sync() == device::WorldOutcome::done &&
      barrier.sync() == device::WorldOutcome::done) {
    return {};
  }
  // Some rank missed the last message of the last agreement.
  static_cast<void>(eventually([&] { return comm.async_error().has_value(); }));
  const auto error = comm.async_error();
  return error ? seen_of(*error) : Seen{false, -1, "no error behind a barrier that was given up"};
}

/// Returns what a process holds after three good starts, when all one-time allocations exist.
inline Held held_after_good_starts(TestRanks& test_ranks) {
  for (int i = 0; i < 3; ++i) {
    const Seen seen = live(test_ranks);
    require(seen.ok, seen.text);
    test_ranks.barrier();
  }
  const Held before = settled();
  test_ranks.barrier();
  return before;
}

/// Puts this rank's outcome in the shared state. Returns true if all ranks have the same outcome
/// and any error names the victim.
inline bool agree(TestRanks& test_ranks, const Seen& mine, int victim) {
  const auto self = static_cast<std::size_t>(test_ranks.first());
  test_ranks.word(kOutcome + self) =
      static_cast<std::uint64_t>(mine.ok) << 32 | static_cast<std::uint32_t>(mine.origin);
  test_ranks.barrier();
  bool same = true;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(test_ranks.size()); ++rank) {
    same = same && test_ranks.word(kOutcome + rank) == test_ranks.word(kOutcome);
  }
  test_ranks.barrier();
  return same && (mine.ok || mine.origin == victim);
}

/// Result of one start in which calls of the victim may fail.
struct Run {
  Seen seen;
  bool agreed;
  bool hit;  ///< the victim made the call that was to fail
};

/// Starts once. `hit` returns true if the armed call of the victim has been made and has failed.
inline Run start_with_faults(TestRanks& test_ranks, int victim, const std::function<void()>& arm,
                             const std::function<void()>& disarm,
                             const std::function<bool()>& hit) {
  const Seen seen = live(test_ranks, arm, disarm);
  if (test_ranks.first() == victim) test_ranks.word(kHitIn) = hit() ? 1 : 0;
  const bool agreed = agree(test_ranks, seen, victim);
  const Run run{seen, agreed, test_ranks.word(kHitIn) != 0};
  test_ranks.barrier();
  return run;
}

/// Counts connections closed by the peer that this end will never close. libfabric's tcp provider
/// forgets connections that it had accepted but not handled when its endpoint was closed.
inline std::size_t forgotten_connections() {
  std::size_t count = 0;
  for (int fd = 0; fd < 256; ++fd) {
    tcp_info info{};
    socklen_t length = sizeof info;
    const bool is_tcp = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
    if (is_tcp && info.tcpi_state == TCP_CLOSE_WAIT) ++count;
  }
  return count;
}

}  // namespace oriel::test
