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

/// A communicator with a network that starts while calls of one rank fail, and what all ranks saw
/// of it.
namespace oriel::test {

/// What a run came to on one rank.
struct Seen {
  bool ok = true;
  int origin = -1;
  std::string text;
};

inline Seen seen_of(const Error& error) {
  return {false, error.origin_rank(), error.to_string()};
}

/// A communicator that starts, with its network, while calls may fail, and is then used.
inline Seen live(Players& players, const std::function<void()>& arm = {},
                 const std::function<void()>& disarm = {}) {
  const ncclUniqueId bytes = players.next_id();
  UniqueId id;
  std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
  players.barrier();  // nobody is in an earlier call any more
  if (arm) arm();
  auto made = Communicator::init(id, players.first(), players.size());
  if (!made.ok() && disarm) disarm();
  if (!made.ok()) return seen_of(made.error());
  Communicator& comm = made.value();
  auto kernels = comm.device_comm({.barrier_slots = 1, .world = true});
  if (disarm) disarm();
  if (!kernels.ok()) return seen_of(kernels.error());
  device::WorldBarrier<device::Thread> barrier({}, kernels.value().view(), 0);
  // A thread of the communicator may notice a failure when its rank has arrived at the barrier,
  // which all others then leave; so they meet in another.
  if (barrier.sync() == device::WorldOutcome::done &&
      barrier.sync() == device::WorldOutcome::done) {
    return {};
  }
  // The last message of the last agreement did not arrive at one of them.
  static_cast<void>(eventually([&] { return comm.async_error().has_value(); }));
  const auto error = comm.async_error();
  return error ? seen_of(*error) : Seen{false, -1, "no error behind a barrier that was given up"};
}

/// What a process holds once whatever is made only once has been made.
inline Held held_after_good_starts(Players& players) {
  for (int i = 0; i < 3; ++i) {
    const Seen seen = live(players);
    require(seen.ok, seen.text);
    players.barrier();
  }
  const Held before = settled();
  players.barrier();
  return before;
}

/// All players' outcomes, of which each rank's error has to name the victim.
inline bool agree(Players& players, const Seen& mine, int victim) {
  const auto self = static_cast<std::size_t>(players.first());
  players.word(kOutcome + self) =
      static_cast<std::uint64_t>(mine.ok) << 32 | static_cast<std::uint32_t>(mine.origin);
  players.barrier();
  bool same = true;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(players.size()); ++rank) {
    same = same && players.word(kOutcome + rank) == players.word(kOutcome);
  }
  players.barrier();
  return same && (mine.ok || mine.origin == victim);
}

/// One start in which calls of the victim may fail.
struct Run {
  Seen seen;
  bool agreed;
  bool hit;  ///< there was such a call
};

/// `hit`: whether the call of this rank, if it is the victim, has come and failed.
inline Run start_with_faults(Players& players, int victim, const std::function<void()>& arm,
                             const std::function<void()>& disarm,
                             const std::function<bool()>& hit) {
  const Seen seen = live(players, arm, disarm);
  if (players.first() == victim) players.word(kHitIn) = hit() ? 1 : 0;
  const bool agreed = agree(players, seen, victim);
  const Run run{seen, agreed, players.word(kHitIn) != 0};
  players.barrier();
  return run;
}

/// Connections that the peer has closed and this end never will: libfabric's tcp forgets those that
/// it had accepted and not looked at yet when its endpoint was closed.
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
