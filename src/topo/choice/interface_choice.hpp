// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "topo/choice/rank_info.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/net_sysfs.hpp"

/// Chooses the network interfaces of a rank, which libfabric's tcp provider and sockets use.
namespace oriel::topo {

/// A rank that uses interfaces.
struct InterfaceUser {
  std::optional<PciAddress> gpu;  ///< address of its GPU; nothing for a rank on the CPU
  /// OS number of the NUMA node near the rank; -1: not known, or bound to none.
  int numa = -1;
  /// Index in `numa_of_ranks`. If that is empty: the number of ranks at the same place that have
  /// chosen before; equally near interfaces are then taken in turn.
  int place = 0;
  /// For a rank on the CPU: `numa` of each such rank of its node, including itself. These ranks
  /// share interfaces as GPUs do. Ranks on GPUs count the GPUs of the machine instead.
  std::vector<int> numa_of_ranks;
};

/// Returns the interface user for rank `own` of a communicator.
InterfaceUser interface_user(const std::vector<RankInfo>& ranks, std::size_t own);

struct InterfaceChoice {
  std::string primary;  ///< empty: there is none
  /// Used when the primary fails; shares no hardware port with the primary. Empty: there is none.
  std::string backup;
  /// All usable interfaces, best first: the primary, the backup, then by hardware class, link
  /// layer, speed and nearness.
  std::vector<std::string> all;
  std::string reason;  ///< text for the log
  /// All interfaces that can replace the primary for data: same hardware class and link layer, not
  /// slow.
  std::vector<std::string> for_data;

  bool operator==(const InterfaceChoice&) const = default;
};

/// Considers interfaces that are up, without loopback and parts of a bond or bridge. If `usable` is
/// not empty, considers only the interfaces that it names; these may be loopback or part of a bond,
/// but not down. Then chooses as follows:
///
/// 1. Interfaces with hardware come before those on USB (a BMC's), and these before those without
///    any (a container may have only such). Among the latter, interfaces with a default route come
///    before tunnels and bridges.
/// 2. The primary is chosen from the best class as choose_nics() chooses NICs: one link layer for
///    all, never slow (PortSpeeds). The nearest by PCI distance wins, then by NUMA distance;
///    equally near ones are balanced. All GPUs of the machine count as users.
/// 3. The backup is in another fault domain, as choose_nics() chooses it: the partner of the
///    primary's port. Ports that are down keep their place in pairs, even if `usable` omits them.
///    Virtual functions stand for the port of their physical function. Without a partner, the
///    nearest other interface is the backup. Interfaces of other link layers, slow ones and ones
///    without hardware come last.
///
/// Depends only on its arguments, and not on the order of `interfaces` or `usable`. Ranks of a node
/// that see the same interfaces therefore choose alike. Unknown names in `usable` count as
/// interfaces without hardware.
InterfaceChoice choose_interfaces(const Machine& machine,
                                  const std::vector<NetworkInterface>& interfaces,
                                  const InterfaceUser& user,
                                  const std::vector<std::string>& usable = {});

/// Chooses on the machine that this process runs on (or that ORIEL_TOPO_FILE describes). The
/// machine is read once, from small files below /sys, in a few milliseconds. Fails if a description
/// cannot be used. Thread-safe.
Result<InterfaceChoice> own_interfaces(const InterfaceUser& user,
                                       const std::vector<std::string>& usable = {});

/// Returns the active RDMA port for a rank on this machine, as choose_nics() chooses it. Fails if
/// there is none, or if a description cannot be used. Takes some hundred milliseconds the first
/// time. Thread-safe.
Result<Nic> own_adapter(const InterfaceUser& user, const Settings& settings);

}  // namespace oriel::topo
