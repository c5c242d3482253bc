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

/// Which network interfaces (what libfabric's tcp provider and sockets go by) a rank uses.
namespace oriel::topo {

/// A rank that asks.
struct InterfaceUser {
  std::optional<PciAddress> gpu;  ///< its GPU's; nothing for a rank on the CPU
  /// The system's number of the NUMA node beside it; -1: not known, or bound to none.
  int numa = -1;
  /// Its place among `numa_of_ranks`, or, where that is empty, how many ranks at its place have
  /// chosen before; those take interfaces that are as near by turns.
  int place = 0;
  /// For a rank on the CPU: of all such ranks of its node, itself among them, what `numa` is of
  /// itself. They share interfaces as GPUs do. Ranks on GPUs go by the GPUs of the machine.
  std::vector<int> numa_of_ranks;
};

/// A rank as the user, of all ranks of its communicator.
InterfaceUser interface_user(const std::vector<RankInfo>& ranks, std::size_t own);

struct InterfaceChoice {
  std::string primary;  ///< empty: there is none
  /// Takes over when the primary fails; it stands for no port of hardware that the primary stands
  /// for. Empty: there is none such.
  std::string backup;
  /// All that can be used, best first: the primary, the backup, then by nearness.
  std::vector<std::string> all;
  std::string reason;  ///< in words, for the log
  /// Of all such as can do for the primary: with hardware if that has some, of its link layer,
  /// and not slow.
  std::vector<std::string> for_data;

  bool operator==(const InterfaceChoice&) const = default;
};

/// Of the interfaces that are up, no loopback and no part of a bond or bridge, or, if `usable`
/// names any, of those alone (then also a loopback or part of a bond, but none that is down):
///
/// 1. Those with hardware behind them come before those on USB (a BMC's), these before those
///    without any (a container may have only such), and of these such as are the way out (with a
///    default route) before tunnels and bridges.
/// 2. Of what is left the primary is chosen as choose_nics() chooses NICs: of one link layer for
///    all, not slow (PortSpeeds) however near, nearest by PCI distance, then NUMA distance, then
///    balanced; all GPUs of the machine count as users.
/// 3. The backup is in another fault domain, as choose_nics() chooses it: the partner of the
///    primary's port, where ports that are down keep their places in pairs (also if `usable` does
///    not name them) and virtual functions stand for the port of their physical one; else the
///    nearest other, with those of other link layers, slow ones and those without hardware last.
///
/// A function of its arguments, and not of the order of `interfaces` or `usable`: the ranks of a
/// node that see the same choose alike. Names in `usable` of which nothing is known are taken as
/// having no hardware.
InterfaceChoice choose_interfaces(const Machine& machine,
                                  const std::vector<NetworkInterface>& interfaces,
                                  const InterfaceUser& user,
                                  const std::vector<std::string>& usable = {});

/// The same on the machine that this process runs on (or that ORIEL_TOPO_FILE describes), which is
/// looked at once: a few milliseconds, of small files below /sys. Fails if a description cannot be
/// used. Thread-safe.
Result<InterfaceChoice> own_interfaces(const InterfaceUser& user,
                                       const std::vector<std::string>& usable = {});

/// The RDMA port for a rank, on the same machine, as choose_nics() chooses it: of those that are
/// active. Fails if there is none, or the description cannot be used. Takes some hundred
/// milliseconds the first time. Thread-safe.
Result<Nic> own_adapter(const InterfaceUser& user, const Settings& settings);

}  // namespace oriel::topo
