// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "oriel/device/queue.hpp"

/// What an error of a queue says, and how a queue's peer is asked whether it is there.
namespace oriel::comm {

/// In words, why an entry was not executed.
const char* describe_syndrome(std::uint32_t syndrome);

/// Whether the fault is the peer's.
bool is_of_peer(std::uint32_t syndrome);

/// Posts a write of no bytes, unless there is something else under way that will tell as much. Its
/// index, if it was posted. CPU ranks: any thread, does not wait. `abort` is the
/// communicator's word.
std::optional<std::uint64_t> post_probe(const device::queue::QueueView& queue,
                                        const std::uint32_t* abort);

/// Whether the error is that of the entry that post_probe() has posted at `probe`, and nothing was
/// posted behind it, so that nobody has asked for anything that failed. CPU ranks.
bool is_of_lone_probe(const device::queue::QueueView& queue, std::uint64_t probe,
                      const device::queue::QueueError& error);

}  // namespace oriel::comm
