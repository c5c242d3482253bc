// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Decides which host is cut off from the network when a connection between two hosts falls silent.
/// Each end sees only that the other is silent, so the decision uses the state of third hosts.
namespace oriel::boot {

/// State of another host, as seen since a link or queue of this rank fell silent.
enum class HostState : std::uint8_t {
  unknown,  ///< no answer yet; the time for an answer may not have passed
  answers,  ///< a rank of the host has answered since
  silent,   ///< the ranks of the host that this rank asked are given up as silent
  slow,     ///< no answer yet, but the host answered while the peer was already silent
};

enum class CutOff : std::uint8_t { undecided, peer, self };

/// Decides whether the silent peer's host or this rank's own host is cut off. The hosts that this
/// rank reaches, its own included, form one side; the silent hosts form the other. The smaller side
/// is cut off, so every rank of an isolated host names its own host. If both sides have the same
/// size, such as two hosts, each side names the other.
///
/// `others` never lists this rank's own host. For queues it lists every other host with a rank that
/// has not left. For links it lists the other hosts to which this rank has links that are open or
/// closed by a timeout. `of_peer` is the index of the silent peer's host. If that host answers,
/// only the peer itself is at fault. Once `is_late`, `unknown` counts as silent; `slow` hosts are
/// still waited for.
CutOff find_cut_off(std::span<const HostState> others, std::size_t of_peer, bool is_late);

}  // namespace oriel::boot
