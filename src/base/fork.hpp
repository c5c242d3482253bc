// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>

/// Protects a forked child from state that belongs to its parent. (After exec nothing remains: all
/// descriptors are closed then.)
namespace oriel {

/// Returns the number of forks between the process that first called this and the present process.
/// An object made at another count belongs to another process. Makes no system call. Forks before
/// the first call of a function of this header, and a bare clone(), do not count. Thread-safe.
std::uint32_t fork_count();

/// Makes forked children give up their copy of this socket at once. Otherwise the socket would stay
/// open when the parent dies, and its peer would wait for the end as long as the child lives. In
/// the child, another object takes the number, so a close() there does not close an unrelated
/// descriptor. The number may later be closed and reused without undoing this call. A fork between
/// the creation of the socket and this call is missed. Thread-safe.
void keep_from_children(int socket);

/// Locks that a forked child needs for inherited objects. Lock several in this order.
enum class ForkLock : std::uint8_t {
  settings,
  process_number,
  memory_blocks,
  allocations,
  threads
};
inline constexpr int kForkLocks = 5;

/// Holds `mutex` during every later fork, so that it is not locked forever in the child. `mutex`
/// must never be destroyed. Thread-safe.
void keep_free_in_children(ForkLock which, std::mutex& mutex);

}  // namespace oriel
