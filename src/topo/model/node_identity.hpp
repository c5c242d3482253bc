// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "topo/model/file_tree.hpp"

namespace oriel::topo {

/// Identity of the machine on which a rank runs, for sharing memory. A plain value.
struct NodeIdentity {
  /// Hash of the machine's identity and present boot, or of the user's override.
  std::uint64_t host = 0;
  /// Inode of the network namespace, or 0 if it is not known. Abstract unix sockets, and hence file
  /// descriptors, travel only inside one namespace.
  std::uint64_t network_namespace = 0;
  /// The user has named the node (ORIEL_HOSTID), and thereby set its limits.
  bool named = false;

  auto operator<=>(const NodeIdentity&) const = default;
};

/// Inputs of a host identity; empty if the machine does not report them.
struct HostFacts {
  std::string name;        ///< the host name
  std::string machine_id;  ///< /etc/machine-id
  std::string boot_id;     ///< /proc/sys/kernel/random/boot_id
};

/// Reads the facts of this machine; both ids are read below the root of `files`. Local; opens two
/// small files; never fails.
HostFacts read_host_facts(const FileTree& files = FileTree("/"));

/// Returns the hash of `host_override` if it is not empty, else of the facts. Images of virtual
/// machines and containers are often cloned with their machine id, so the boot id is included. The
/// host name is included too: it distinguishes clones that share both ids, but not their name.
std::uint64_t host_hash(const HostFacts& facts, std::string_view host_override);

/// Returns the identity of this process's node. `host_override` is the setting ORIEL_HOSTID (or its
/// alias NCCL_HOSTID). Ranks with equal overrides count as one node, ranks with different ones as
/// several.
NodeIdentity read_node_identity(std::string_view host_override,
                                const FileTree& files = FileTree("/"));

}  // namespace oriel::topo
