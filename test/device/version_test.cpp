// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "oriel/device/barrier.hpp"
#include "oriel/device/comm.hpp"
#include "oriel/device/world.hpp"
#include "oriel/device/world_barrier.hpp"

namespace oriel::test {
namespace {

/// FNV-1a over the numbers, byte by byte.
std::uint64_t hash_of(const std::vector<std::size_t>& numbers) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::size_t number : numbers) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((number >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  return hash;
}

#define ORIEL_AT(type, member) offsetof(type, member), sizeof(type::member)

/// Returns offsets and sizes of members that the library fills and user kernels read. Contains only
/// the sizes of Completion and Wqebb. Leaves out WindowObject, which has its own version.
std::vector<std::size_t> layout() {
  using namespace device;         // NOLINT(google-build-using-namespace)
  using namespace device::queue;  // NOLINT(google-build-using-namespace)
  return {sizeof(CommView), ORIEL_AT(CommView, world_rank), ORIEL_AT(CommView, world_size),
          ORIEL_AT(CommView, lsa_rank), ORIEL_AT(CommView, lsa_size), ORIEL_AT(CommView, wait),
          ORIEL_AT(CommView, lsa_world_ranks), ORIEL_AT(CommView, control_base),
          ORIEL_AT(CommView, control_stride_4g), ORIEL_AT(CommView, barrier_slots),
          ORIEL_AT(CommView, barrier_offset), ORIEL_AT(CommView, doorbell_offset),
          ORIEL_AT(CommView, communicator), ORIEL_AT(CommView, lsa_index_of),
          ORIEL_AT(CommView, network), ORIEL_AT(CommView, control_network),
          ORIEL_AT(CommView, signals), ORIEL_AT(CommView, counters),
          ORIEL_AT(CommView, signal_offset), ORIEL_AT(CommView, counter_offset),
          ORIEL_AT(CommView, world_barrier_slots), ORIEL_AT(CommView, world_barrier_offset),
          // WaitControl in CommView, and structures that pointers reach from CommView.
          sizeof(WaitControl), ORIEL_AT(WaitControl, abort), ORIEL_AT(WaitControl, stall),
          ORIEL_AT(WaitControl, timeout_ns), ORIEL_AT(WaitControl, self),
          ORIEL_AT(WaitControl, spin_ns), ORIEL_AT(WaitControl, yield_ns),
          ORIEL_AT(WaitControl, doorbell), sizeof(StallRecord), ORIEL_AT(StallRecord, waiting),
          ORIEL_AT(StallRecord, epoch), ORIEL_AT(StallRecord, since_ns),
          ORIEL_AT(StallRecord, gave_up), sizeof(Doorbell), ORIEL_AT(Doorbell, sleeping),
          ORIEL_AT(Doorbell, ticket), sizeof(NetworkView), ORIEL_AT(NetworkView, number),
          ORIEL_AT(NetworkView, world_size), ORIEL_AT(NetworkView, queues),
          ORIEL_AT(NetworkView, drive), ORIEL_AT(NetworkView, nic), ORIEL_AT(NetworkView, doorbell),
          sizeof(NetworkWindow), ORIEL_AT(NetworkWindow, network), ORIEL_AT(NetworkWindow, local),
          ORIEL_AT(NetworkWindow, peers), sizeof(Region), ORIEL_AT(Region, address),
          ORIEL_AT(Region, bytes), ORIEL_AT(Region, chunk_shift), ORIEL_AT(Region, keys),
          ORIEL_AT(Region, skip), ORIEL_AT(Region, more_keys),
          // Queues.
          sizeof(QueueView), ORIEL_AT(QueueView, ring), ORIEL_AT(QueueView, depth),
          ORIEL_AT(QueueView, number), ORIEL_AT(QueueView, peer), ORIEL_AT(QueueView, reader),
          ORIEL_AT(QueueView, gets_need_dump), ORIEL_AT(QueueView, doorbell_record),
          ORIEL_AT(QueueView, doorbell), ORIEL_AT(QueueView, completion),
          ORIEL_AT(QueueView, nic_error), ORIEL_AT(QueueView, indexes), ORIEL_AT(QueueView, marks),
          ORIEL_AT(QueueView, fetch_values), ORIEL_AT(QueueView, fetch_turns),
          ORIEL_AT(QueueView, fetch_slots), ORIEL_AT(QueueView, fetch_lkey), sizeof(QueueIndexes),
          ORIEL_AT(QueueIndexes, reserved), ORIEL_AT(QueueIndexes, sweep),
          ORIEL_AT(QueueIndexes, completed), ORIEL_AT(QueueIndexes, error),
          ORIEL_AT(QueueIndexes, broken), ORIEL_AT(QueueIndexes, polling),
          ORIEL_AT(QueueIndexes, fetch_tickets), ORIEL_AT(QueueIndexes, gets_end),
          ORIEL_AT(QueueIndexes, gets_visible), sizeof(Completion), sizeof(Wqebb),
          // Control memory.
          LsaBarrierLayout::bytes_needed(1, 1), LsaBarrierLayout::bytes_needed(17, 3),
          sizeof(SignalWords), ORIEL_AT(SignalWords, from_team),
          ORIEL_AT(SignalWords, from_network), sizeof(WorldBarrierSlot),
          ORIEL_AT(WorldBarrierSlot, epoch), ORIEL_AT(WorldBarrierSlot, arrived)};
}

#undef ORIEL_AT

TEST_CASE("kDeviceVersion is raised with each change of the layout that kernels read",
          "[req:1.22]") {
  // If the hash differs: raise kDeviceVersion (oriel/device/comm.hpp) and write both here.
  CHECK(device::kDeviceVersion == 2);
  CHECK(hash_of(layout()) == 0xee2538546abb2817);
}

}  // namespace
}  // namespace oriel::test
