// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>

/// What a child that the application forks may not keep of its parent's. (One that executes another
/// program keeps nothing: all descriptors are closed then.)
namespace oriel {

/// How many forks lie between the process that called this first and the present one: what was made
/// at another number belongs to another process. Costs no system call. Forks before the first call,
/// and by a bare clone(), do not count. Thread-safe.
std::uint32_t fork_count();

/// From now on a forked child gives up its copy of this socket at once. Otherwise the socket would
/// stay open when the parent dies, and its peer would wait for the end as long as the child lives.
/// In the child the number stays taken, by something else, so that whoever closes it there closes
/// nothing of another's. Needs no undoing: the number may be closed and used for anything. A fork
/// between the making of the socket and this call is missed. Thread-safe.
void keep_from_children(int socket);

/// Locks that a child needs for what it may do with what it has inherited. Who takes several takes
/// them in this order.
enum class ForkLock : std::uint8_t {
  settings,
  process_number,
  memory_blocks,
  allocations,
  threads
};
inline constexpr int kForkLocks = 5;

/// From now on no fork happens while another thread holds `mutex`, which is never destroyed: in the
/// child it would stay locked for ever. Thread-safe.
void keep_free_in_children(ForkLock which, std::mutex& mutex);

}  // namespace oriel
