// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <string>
#include <vector>

#include "topo/choice/nic_choice.hpp"
#include "topo/model/machine.hpp"

/// Machines for tests: the fixtures by name, and builders of others. Each passes check() and is
/// canonical.
namespace oriel::topo {

/// Builds a machine piece by piece. Functions that add a node or a device return its index. pair()
/// and one_way() return nothing.
class MachineBuilder {
 public:
  Machine machine;

  int numa(int os_index, std::vector<int> cpus);
  int host_bridge(int numa);
  int bridge(int parent, const char* address, double gbps = 0);
  int gpu(int parent, const char* address, const char* name = "GPU", double gbps = 500);
  int nic(int parent, const char* address, const char* name, double gbps = 400,
          std::uint64_t card = 0, int port = 1);
  /// Adds a fact about both directions of a pair.
  void pair(int a, int b, bool maps, int links = 0, bool atomics = false);
  void one_way(int from, int to, bool maps, int links = 0);

 private:
  int add(PciNode node);
  int device(int parent, const char* address, double gbps);
};

/// 8 GPUs linked through switches with 18 links each, 2 sockets, 4 PCIe switches with 2 GPUs and 2
/// single-port NICs of 400 Gbit/s each.
Machine hgx_8();
/// Two groups of 4 GPUs on one host: each linked all to all, nothing between the groups.
Machine two_cliques();
/// 2 GPUs below one host bridge, peer access over PCIe, no NVLink, no NIC.
Machine workstation();
/// 2 sockets with 2 GPUs each and one NIC at the first.
Machine one_nic();
/// One GPU cut into 3 MIG instances, one NIC.
Machine mig();
/// 8 AMD GPUs, all linked to each other.
Machine amd_full_mesh();
/// 8 AMD GPUs in a ring of links. GPUs two places apart are reached over two hops, the others over
/// the host.
Machine amd_partial_mesh();
/// 2 NUMA nodes, a dual-port NIC at the second, no GPU.
Machine cpu_only();
/// 4 GPUs and 3 network cards, with irregularities. There are a dead port, cards with two ports,
/// one-way peer access, and NUMA nodes 0 and 8. One GPU has no NIC below its host bridge.
Machine uneven();

struct NamedMachine {
  std::string name;
  Machine machine;
};
/// Returns all fixtures.
std::vector<NamedMachine> all_machines();

/// Returns a random machine with up to 4 NUMA nodes, 9 GPUs and 9 NICs below bridges. GPUs reach
/// each other over links only, in both directions, so that NCCL's format can hold the machine.
Machine random_machine(std::mt19937& random);

/// Builds a machine from one line, in the order of its text:
///
///     n( b( g g ib400 ) eth100#7 eth100+#7! ) n( ib400 )
///
/// Words:
///
///     n(      opens a host bridge at the next NUMA node, which has one processor.
///     ?(      opens a host bridge at no node.
///     b(      opens a bridge.
///     )       closes a bridge or host bridge.
///     g       a GPU.
///     g?      a GPU at an unknown place.
///     ib400   a port: `ib`, `eth` or `odd` with its Gbit/s, named by layer and number.
///
/// Suffixes of a port, in this order:
///
///     +       the next function of the previous port.
///     v       a virtual function of the last physical port.
///     =       another device of the previous port.
///     #7      card number 7.
///     @4f     the bus.
///     !       down.
Machine machine_of(const std::string& text);

/// Prints the port and the backup of each GPU and of each NUMA node: "0/1 1/0 | 0/-".
std::string nics_text(const Machine& machine);

/// Returns the machine with its elements in another order.
Machine shuffled(const Machine& machine, unsigned seed);

/// Returns the primary NICs of these choices, in their order.
inline std::vector<int> primaries(const std::vector<NicChoice>& choices) {
  std::vector<int> list;
  for (const NicChoice& one : choices) list.push_back(one.primary);
  return list;
}

}  // namespace oriel::topo
