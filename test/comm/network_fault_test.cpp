// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "oriel/device/group.hpp"
#include "oriel/device/world_barrier.hpp"

#include "api/api_ranks.hpp"
#include "comm/fault_outcome.hpp"
#include "comm/held.hpp"
#include "net/wire_fabric.hpp"
#include "support/fault.hpp"

/// Has every system call of a rank fail, one at a time, while it makes its queues to the ranks of
/// other nodes (3.15): all ranks have the same error, and nothing is left.
namespace oriel::test {
namespace {

constexpr int kRanks = 3;  // on nodes of one and two
constexpr int kMissesToEnd = 3;
constexpr long kCallsMost = 2000;
constexpr std::array kStatuses = {ENOMEM, EMFILE, ENFILE, EPERM, EIO, ENOBUFS};

/// What a run came to on one rank.
struct Seen {
  bool ok = true;
  int origin = -1;
  std::string text;
};

Seen seen_of(const Error& error) {
  return {false, error.origin_rank(), error.to_string()};
}

/// A communicator that starts, with its network, while calls may fail, and is then used.
Seen live(Players& players, FaultPlan* plan) {
  const ncclUniqueId bytes = players.next_id();
  UniqueId id;
  std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
  players.barrier();  // nobody is in an earlier call any more
  std::optional<ScopedSystemFaults> faults;
  if (plan != nullptr) faults.emplace(*plan, Reach::process);
  auto made = Communicator::init(id, players.first(), players.size());
  if (!made.ok()) return seen_of(made.error());
  Communicator& comm = made.value();
  auto kernels = comm.device_comm({.barrier_slots = 1, .world = true});
  faults.reset();
  if (!kernels.ok()) return seen_of(kernels.error());
  device::WorldBarrier<device::Thread> barrier({}, kernels.value().view(), 0);
  // A thread of the communicator may notice a failure when its rank has arrived at the barrier,
  // which all others then leave; so they meet in another.
  if (barrier.sync() == device::WorldOutcome::done &&
      barrier.sync() == device::WorldOutcome::done) {
    return {};
  }
  // The last message of the last agreement did not arrive at one of them.
  for (int i = 0; i < 500 && !comm.async_error(); ++i) std::this_thread::sleep_for(10ms);
  const auto error = comm.async_error();
  return error ? seen_of(*error) : Seen{false, -1, "no error behind a barrier that was given up"};
}

/// All players' outcomes, of which each rank's error has to name the victim.
bool agree(Players& players, const Seen& mine, int victim) {
  const auto self = static_cast<std::size_t>(players.first());
  players.word(kOutcome + self) =
      static_cast<std::uint64_t>(mine.ok) << 32 | static_cast<std::uint32_t>(mine.origin);
  players.barrier();
  bool same = true;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    same = same && players.word(kOutcome + rank) == players.word(kOutcome);
  }
  players.barrier();
  return same && (mine.ok || mine.origin == victim);
}

/// Connections that the peer has closed and this end never will: libfabric's tcp forgets those that
/// it had accepted and not looked at yet when its endpoint was closed.
std::size_t forgotten_connections() {
  std::size_t count = 0;
  for (int fd = 0; fd < 256; ++fd) {
    tcp_info info{};
    socklen_t length = sizeof info;
    const bool is_tcp = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
    if (is_tcp && info.tcpi_state == TCP_CLOSE_WAIT) ++count;
  }
  return count;
}

void walk(Players& players, long stride, long first, bool by_fabric) {
  for (int i = 0; i < 3; ++i) {
    const Seen seen = live(players, nullptr);
    require(seen.ok, seen.text);
    players.barrier();
  }
  const Held before = settled();
  players.barrier();
  std::string complaints;
  int failures = 0, harmless = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    int misses = 0;
    for (long k = first; misses < kMissesToEnd && k < kCallsMost; k += stride) {
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = kStatuses[static_cast<std::size_t>(k) % kStatuses.size()];
      const bool is_victim = players.first() == victim;
      const Seen seen = live(players, is_victim ? &plan : nullptr);
      if (is_victim) players.word(kHitIn) = plan.hit() ? 1 : 0;
      const bool agreed = agree(players, seen, victim);
      misses = players.word(kHitIn) != 0 ? 0 : misses + 1;
      ++(seen.ok ? harmless : failures);
      if (agreed) continue;
      complaints += fmt::format("\nrank {}, call {} {}: {}", victim, k,
                                plan.hit() ? plan.failed.load() : "", seen.text);
    }
    Held allowed = before;
    if (by_fabric) {
      static_cast<void>(settled());
      allowed.fds += forgotten_connections();
    }
    require_held(allowed, fmt::format("after the walk over rank {}", victim));
    players.barrier();
  }
  if (players.first() == 0) {
    std::fprintf(stderr, "%d errors on all ranks, %d without effect\n", failures, harmless);
  }
  require(complaints.empty(), complaints);
  require(failures > 0, "some calls were needed");
}

}  // namespace

namespace {

void walk_with(const Variables& settings, long stride, bool by_fabric) {
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  WARN("ORIEL_TEST_STRIDE=" << stride << " ORIEL_TEST_SEED=" << seed);
  const Environment common(Variables{{"ORIEL_TIMEOUT", "20s"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  const Environment environment(settings);
  check_all_ok(play(
      Cast::processes, kRanks,
      [&](Players& players) {
        const Environment node(
            Variables{{"ORIEL_HOSTID", players.first() == 0 ? "first" : "second"}});
        walk(players, stride, 1 + seed % stride, by_fabric);
      },
      std::chrono::seconds(110)));
}

}  // namespace

// Every call: ORIEL_TEST_STRIDE=1.
TEST_CASE("3.15 whichever system call fails while queues are made, all ranks agree") {
  walk_with({}, number_from("ORIEL_TEST_STRIDE", 5), false);
}

TEST_CASE("3.14 whichever system call fails while queues with backups are made, all ranks agree") {
  const auto wire =
      net::WireFabric::create({.provider = "tcp;ofi_rxm", .socket = {.ifname = "lo"}});
  if (!wire.ok()) {
    WARN("no fabric: " << wire.error().to_string());
    return;
  }
  walk_with({{"ORIEL_FABRIC_PROVIDER", "tcp;ofi_rxm"},
             {"ORIEL_WIRE", "fabric"},
             {"ORIEL_PATHS", "lo,lo"}},
            number_from("ORIEL_TEST_STRIDE", 31), true);
}

}  // namespace oriel::test
