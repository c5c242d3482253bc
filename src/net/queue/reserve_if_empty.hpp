// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

namespace oriel::net {

/// Reserves one WQEBB if everything ever reserved is complete; fails if another thread reserves
/// first. Unlike reserve(), it never waits. If it fails, it leaves no WQEBB that would have to be
/// filled. The matching publish() does not wait either. For host threads.
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
