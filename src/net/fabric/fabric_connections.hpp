// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>

#include <sys/types.h>

/// TCP connections that a library keeps to itself, found by the epoll descriptor that it waits on.
namespace oriel::net {

/// Shuts down both directions (shutdown(2)) of each TCP connection that `epoll` watches, directly
/// or by a nested epoll descriptor. A reader finds the end of the stream after the data that has
/// come; written data still leaves. `all`: shuts down listening sockets too, so that nobody
/// connects any more. Local.
///
/// Returns the inodes of the connections; an inode is unique while its connection is open. Returns
/// nothing if there is no memory, or if /proc does not say what is watched (not mounted).
std::optional<std::set<ino_t>> end_connections(int epoll, bool all);

}  // namespace oriel::net
