// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/wait_control.hpp"

#include <algorithm>
#include <cstdint>
#include <thread>

namespace oriel::comm {
namespace {

// Sets the times for which a wait spins and yields. Spinning pays only while every rank of the node
// has its own processor. Even with enough processors, two ranks may share one, where each call
// would take two full spins. Waits yield for much longer than they spin, because a yield takes only
// 0.4 us if no other thread wants the processor (docs/notes/cpu.md).
void tune_waits(device::WaitControl& wait, int ranks_here) {
  static const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const bool crowded = static_cast<unsigned>(ranks_here) > processors;
  wait.spin_ns = crowded ? 500 : 5'000;
  wait.yield_ns = crowded ? 20'000 : 200'000;
}

}  // namespace

device::Doorbell* own_doorbell(const CommunicatorParts& parts) {
  const auto slot = static_cast<std::size_t>(parts.team_facts.index);
  return reinterpret_cast<device::Doorbell*>(parts.control.flat_base + slot * parts.slot_bytes +
                                             parts.layout.doorbell);
}

device::WaitControl wait_control(const CommunicatorParts& parts, void* doorbell) {
  Notices* const notices = parts.notices->on_device();
  device::WaitControl wait;
  wait.abort = &notices->abort;
  wait.stall = &notices->stall;
  wait.self = parts.session->rank();
  if (parts.settings->collective_timeout) {
    wait.timeout_ns = static_cast<std::uint64_t>(
        std::max<Duration>(Duration(1), *parts.settings->collective_timeout).count());
  }
  if (on_host(parts)) {
    // If the NIC rings no doorbells, waits must poll.
    const bool is_woken = parts.network == nullptr || parts.network->wakes_waiters();
    wait.doorbell = is_woken ? static_cast<device::Doorbell*>(doorbell) : nullptr;
    // Nodes of one machine (ORIEL_HOSTID) share its processors.
    const int ranks_here = parts.network != nullptr
                               ? parts.network->ranks_on_machine()
                               : static_cast<int>(parts.team_facts.members.size());
    tune_waits(wait, ranks_here);
  }
  return wait;
}

}  // namespace oriel::comm
