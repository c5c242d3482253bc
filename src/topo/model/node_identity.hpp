// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "topo/model/file_tree.hpp"

namespace oriel::topo {

/// Which machine a rank runs on, as far as sharing memory goes. A plain value.
struct NodeIdentity {
  /// A hash of what names the machine and its present boot, or of the user's override.
  std::uint64_t host = 0;
  /// The inode of the network namespace, or 0 where it cannot be told. Abstract unix sockets, and
  /// hence file descriptors, travel only inside one.
  std::uint64_t network_namespace = 0;
  /// The user named the node (ORIEL_HOSTID), and so says where it ends.
  bool named = false;

  auto operator<=>(const NodeIdentity&) const = default;
};

/// What a host identity is made from; empty where the machine does not tell.
struct HostFacts {
  std::string name;        ///< the host name
  std::string machine_id;  ///< /etc/machine-id
  std::string boot_id;     ///< /proc/sys/kernel/random/boot_id
};

/// Reads the facts of this machine, the two ids below the root of `files`. Local; opens two small
/// files; never fails.
HostFacts read_host_facts(const FileTree& files = FileTree("/"));

/// The hash of `host_override` if it is not empty, else of the facts. Images of virtual machines
/// and containers are often cloned with their machine id, which is why the boot counts too; two
/// clones of one memory image still differ in their names.
std::uint64_t host_hash(const HostFacts& facts, std::string_view host_override);

/// The identity of this process's node. `host_override` is the setting ORIEL_HOSTID (or its alias
/// NCCL_HOSTID): ranks that share it count as one node, ranks that differ in it as several.
NodeIdentity read_node_identity(std::string_view host_override,
                                const FileTree& files = FileTree("/"));

}  // namespace oriel::topo
