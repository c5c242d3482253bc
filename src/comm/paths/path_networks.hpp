// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "boot/auth/socket_address.hpp"
#include "comm/paths/path_pairs.hpp"
#include "topo/model/file_tree.hpp"

namespace oriel::comm {

/// What there is to tell of an interface whose wire is bound to `address`: the networks to which
/// the main table of routes leads by it. Where there are more than PathInterface::kNetworksMost,
/// those to which the host is attached come first, its own before others, then smaller ones before
/// larger. Those that say nothing of where an interface leads are left out: the default route, the
/// host's own addresses, what is the same on each link (link-local, multicast) or host (loopback).
/// Nothing is told of addresses of such kinds. Reads one file, of 8 MiB at most: some 60,000
/// routes.
PathInterface describe_interface(const topo::FileTree& files, const std::string& name,
                                 const boot::SocketAddress& address);

}  // namespace oriel::comm
