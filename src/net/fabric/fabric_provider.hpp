// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "boot/auth/socket_address.hpp"
#include "net/fabric/fabric_endpoint.hpp"

namespace oriel::net {

struct FabricWish {
  std::string provider;           ///< ORIEL_FABRIC_PROVIDER; empty: the best of those known
  boot::SocketOptions socket;     ///< which interface those that speak IP use
  std::size_t message_bytes = 0;  ///< the longest message
};

/// How to open what carries messages: reliable, in order, without a connection of ours. Asks for
/// efa, verbs, tcp's own endpoints without connections (libfabric 1.18 and later), and tcp under
/// rxm, in this order, and takes the first that has all of it; a wish's provider is the only one
/// asked for. The others of libfabric are left alone: shm installs handlers of signals, sockets and
/// udp move a message only while its receiver is driven too, and net's atomics are missing.
/// The error names what each has said. Local; may take as long as the providers need to look for
/// their hardware.
Result<FabricInfo> choose_fabric(const FabricTable& table, const FabricWish& wish);
/// Has them look for it before that, which takes its time once in a process. Not where shm is asked
/// for.
void look_for_fabrics(const FabricTable& table);

}  // namespace oriel::net
