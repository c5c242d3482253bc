// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

#include "net/soft/soft_send_queue.hpp"

namespace oriel::net::test {

using Immediate = device::queue::ReceivedImmediate;

/// Posts receives for `count` immediates, as a thread of the host.
[[nodiscard]] inline bool post_receives(const SendQueue& queue, std::uint32_t count) {
  return device::queue::post_receives(queue.receives(), count);
}
/// Takes the next immediate. Returns false if there is none, or if the queue has failed.
inline bool take_immediate(const SendQueue& queue, Immediate& immediate) {
  return device::queue::take_immediate(queue.receives(), immediate) ==
         device::queue::Arrival::immediate;
}

}  // namespace oriel::net::test
