// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <set>

#include <sys/types.h>

/// The connections that a library keeps to itself, found by the descriptor that it waits on.
namespace oriel::net {

/// Ends both directions (shutdown(2)) of each TCP connection that `epoll` watches, or that an epoll
/// descriptor does which it watches; whoever reads from one finds its end behind what has come, and
/// what was written still leaves. Their inodes, which no others have as long as they are open;
/// nothing where the kernel does not say what is watched (/proc is not mounted), or without memory.
/// `all`: those that listen too, so that nobody connects any more. Local.
std::optional<std::set<ino_t>> end_connections(int epoll, bool all);

}  // namespace oriel::net
