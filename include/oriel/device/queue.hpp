// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Queues of a NIC that device code fills itself.
///
/// Example: writes bytes to the peer of a queue, and waits until they have arrived.
/// ```cpp
/// namespace queue = oriel::device::queue;
/// ORIEL_DEVICE_FN queue::QueueOutcome write_bytes(const queue::QueueView& to,
///                                                 const queue::Transfer& transfer,
///                                                 const oriel::device::WaitControl& control) {
///   const queue::Posted posted = queue::put(oriel::device::Thread{}, to, transfer, control);
///   if (posted.outcome != queue::QueueOutcome::done) return posted.outcome;
///   return queue::wait_complete(to, posted.end, control);
/// }
/// ```
/// @file
#include "oriel/device/queue/atomics.hpp"
#include "oriel/device/queue/completion.hpp"
#include "oriel/device/queue/immediates.hpp"
#include "oriel/device/queue/publish.hpp"
#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/send_queue.hpp"
#include "oriel/device/queue/transfers.hpp"
#include "oriel/device/queue/wqe.hpp"
