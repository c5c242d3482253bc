// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <thread>

#include "comm/communicator/rank_communicator.hpp"

/// Sets how a rank's waits spin, sleep and end.
namespace oriel::comm {
namespace {

// Spinning pays only while every rank of the node has a processor to itself. That there are enough
// of them does not say that two ranks are not on one, where each call would take two full spins;
// and where nothing else wants the processor, yielding costs a wait 0.3 us.
void tune_waits(device::WaitControl& wait, int ranks_here) {
  static const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const bool crowded = static_cast<unsigned>(ranks_here) > processors;
  wait.spin_ns = crowded ? 500 : 5'000;
  wait.yield_ns = crowded ? 20'000 : 200'000;
}

}  // namespace

device::Doorbell* Communicator::own_doorbell() const {
  const auto slot = static_cast<std::size_t>(team_facts_.index);
  return reinterpret_cast<device::Doorbell*>(control_.flat_base + slot * slot_bytes_ +
                                             layout_.doorbell);
}

device::WaitControl Communicator::wait_control(void* doorbell) const {
  Notices* const notices = notices_->on_device();
  device::WaitControl wait;
  wait.abort = &notices->abort;
  wait.stall = &notices->stall;
  wait.self = rank();
  if (settings_->collective_timeout) {
    wait.timeout_ns = static_cast<std::uint64_t>(
        std::max<Duration>(Duration(1), *settings_->collective_timeout).count());
  }
  if (on_host()) {
    // Nobody would ring it for what an adapter has written.
    const bool is_woken = network_ == nullptr || network_->wakes_waiters();
    wait.doorbell = is_woken ? static_cast<device::Doorbell*>(doorbell) : nullptr;
    // Nodes of one machine (ORIEL_HOSTID) share its processors, other machines have their own.
    const int ranks_here = network_ != nullptr ? network_->ranks_on_machine()
                                               : static_cast<int>(team_facts_.members.size());
    tune_waits(wait, ranks_here);
  }
  return wait;
}

}  // namespace oriel::comm
