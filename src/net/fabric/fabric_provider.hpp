// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "boot/auth/socket_address.hpp"
#include "net/fabric/fabric_endpoint.hpp"

namespace oriel::net {

struct FabricRequest {
  std::string provider;           ///< ORIEL_FABRIC_PROVIDER; empty: the best known one
  boot::SocketOptions socket;     ///< selects the interface of providers that use IP
  std::size_t message_bytes = 0;  ///< the longest message
};

/// Chooses a provider of reliable, ordered messages without connections of ours. Asks for efa,
/// verbs under rxm, tcp's own connectionless endpoints (libfabric 1.18 and later), and tcp under
/// rxm, in this order. Takes the first that meets all requirements. If the request names a
/// provider, asks for no other.
///
/// Other providers of libfabric are not tried. shm installs signal handlers. sockets and udp move a
/// message only while its receiver is driven too. net is experimental in libfabric 1.17.
///
/// The error has each provider's reason. Local; may take as long as the providers look for their
/// hardware.
Result<FabricInfo> choose_fabric(const FabricTable& table, const FabricRequest& request);
/// Lets the providers look for their hardware in advance, which takes its time once in a process.
/// Must not be called where shm is wanted: signal handlers that appear are removed.
void discover_fabrics(const FabricTable& table);

}  // namespace oriel::net
