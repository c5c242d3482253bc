// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

namespace oriel::net {

/// Takes one block of the ring if everything that was ever reserved is complete, and nobody comes
/// in between. Unlike reserve() it never waits, and if it does not take the block it leaves none
/// that somebody would have to fill. Nor does publish() wait for what it has taken. For threads of
/// the host.
template <class M = device::Memory>
[[nodiscard]] bool reserve_if_empty(const device::queue::QueueView& queue,
                                    device::queue::Reservation& place) {
  using device::Order;
  using device::Scope;
  device::queue::QueueIndexes& at = *queue.indexes;
  const auto completed = device::queue::detail::load_index<M>(&at.completed);
  const auto reserved = device::queue::detail::load_index<M>(&at.reserved);
  if (completed != reserved) return false;
  const std::uint64_t sweep = M::template load<Order::relaxed, Scope::device>(&at.sweep);
  if (M::template compare_swap<Order::relaxed, Scope::device>(&at.reserved, reserved,
                                                              reserved + 1) != reserved) {
    return false;
  }
  place = {reserved, 1, 0, sweep == reserved << 1};
  return true;
}

}  // namespace oriel::net
