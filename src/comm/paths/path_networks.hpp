// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "boot/auth/socket_address.hpp"
#include "comm/paths/path_pairs.hpp"
#include "topo/model/file_tree.hpp"

namespace oriel::comm {

/// Describes an interface whose wire is bound to `address`: the networks that the main routing
/// table reaches through it. At most PathInterface::kNetworksMost are kept. Networks that contain
/// `address` come first, then networks without a gateway, then longer prefixes. Routes that do not
/// identify a network are skipped. These are the default route, the host's own addresses, and
/// link-local, multicast and loopback ranges. If `address` is link-local or loopback, the
/// description is empty. Reads at most 8 MiB of one file: some 60,000 routes.
PathInterface describe_interface(const topo::FileTree& files, const std::string& name,
                                 const boot::SocketAddress& address);

}  // namespace oriel::comm
