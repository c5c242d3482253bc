// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oriel/error.hpp"

#include "topo/model/pci_address.hpp"

/// Model of a machine for moving data. The types are plain values, filled in by discovery or from a
/// file. All decisions (reach, teams, NICs, paths) are functions of them.
namespace oriel::topo {

/// Memory with the processors near it.
struct NumaNode {
  int os_index = 0;
  int package = -1;       ///< the socket; -1: not known
  std::vector<int> cpus;  ///< OS numbers, ascending; empty: memory without processors
  std::size_t memory_bytes = 0;
  /// Read bandwidth from the nearest processors, in Gbit/s; 0: the firmware does not report it.
  double memory_gbps = 0;
  /// Distance to each entry of Machine::numa, in its order; 10 is local. Empty: the firmware does
  /// not report distances.
  std::vector<int> distances;

  bool operator==(const NumaNode&) const = default;
};

/// A node of the tree of PCI buses.
struct PciNode {
  enum class Kind : std::uint8_t { host_bridge, bridge, device };

  Kind kind = Kind::device;
  int parent = -1;                    ///< in Machine::pci; -1 for a host bridge
  std::optional<PciAddress> address;  ///< host bridges may have none
  int numa = -1;                      ///< in Machine::numa; -1: not known
  double link_gbps = 0;      ///< maximum, in Gbit/s one way towards the parent; 0: not known
  double link_now_gbps = 0;  ///< current bandwidth, one way; 0: not known
  int lanes = 0;             ///< lanes that both ends of the link support; 0: not known
  int lanes_now = 0;         ///< lanes in use; idle links reduce their speed, but keep their lanes

  bool operator==(const PciNode&) const = default;
};

enum class GpuVendor : std::uint8_t { nvidia, amd, other };

/// Identity of a fabric clique: its GPUs reach each other's memory through one fabric of NVLink
/// switches, even between hosts.
struct FabricClique {
  std::array<std::byte, 16> cluster{};
  std::uint32_t clique = 0;

  bool operator==(const FabricClique&) const = default;
};

/// One GPU, one MIG instance of one, or one partition of one (AMD's modes DPX, QPX and CPX).
struct Gpu {
  GpuVendor vendor = GpuVendor::nvidia;
  std::string name;      ///< such as "NVIDIA H200"
  int architecture = 0;  ///< CUDA's compute capability, 90 for 9.0; 0: not known
  std::string uuid;      ///< format of the vendor's tool; unique, may be empty
  std::optional<PciAddress> pci;
  int node = -1;     ///< index in Machine::pci; -1: not in the tree
  int numa = -1;     ///< in Machine::numa
  int ordinal = -1;  ///< CUDA ordinal in this process; -1: hidden from it
  /// NVML index of the whole GPU, as in NCCL's files; -1: not known. Not unique: files merged from
  /// processes in containers that hide GPUs may repeat it.
  int nvml_index = -1;
  int mig_instance = -1;  ///< -1: a whole GPU
  int partition = -1;     ///< -1: a whole GPU; partitions share a PCI function and map each other's
                          ///< memory
  int switch_links = 0;   ///< links to NVLink switches
  double link_gbps = 0;   ///< bandwidth of one NVLink or xGMI link, one way; 0: not known
  /// Maximum bandwidth of its PCIe link, one way; 0: not known. Decisions use this value, because
  /// an idle link reduces its speed to save power.
  double pcie_gbps = 0;
  double pcie_now_gbps = 0;  ///< current bandwidth, one way; 0: not known
  std::optional<FabricClique> fabric;
  bool fd_handles = false;      ///< memory can be exported as a file descriptor
  bool fabric_handles = false;  ///< memory can be exported as a fabric handle

  bool operator==(const Gpu&) const = default;
};

/// Relation of one GPU to another, in one direction; the other direction may differ.
struct GpuPair {
  int from = 0;  ///< index in Machine::gpus: the GPU that maps
  int to = 0;    ///< index in Machine::gpus: the GPU whose memory is mapped
  /// `from` may map the memory of `to`; nothing: no source says.
  std::optional<bool> maps;
  bool atomics = false;  ///< native atomics work over this path
  int links = 0;         ///< direct NVLink or xGMI links between the two
  int hops = 0;          ///< number of such links on the way between the two; 0: not known
  /// Bandwidth of the direct links together, one way, if a source reports it for this pair. 0: use
  /// the link bandwidth of the two GPUs.
  double gbps = 0;

  bool operator==(const GpuPair&) const = default;
};

/// One port of an RDMA network card.
struct Nic {
  enum class Layer : std::uint8_t { infiniband, ethernet, other };

  std::string name;  ///< device name, such as "mlx5_0"
  int port = 1;
  std::string interface;  ///< network interface, such as "ens1f0"; may be empty
  std::optional<PciAddress> pci;
  std::optional<PciAddress> physical;  ///< physical function of a virtual function or subfunction
  int node = -1;                       ///< in Machine::pci
  int numa = -1;                       ///< in Machine::numa
  Layer layer = Layer::infiniband;
  bool active = true;
  double gbps = 0;
  std::uint64_t guid = 0;  ///< GUID of the device
  std::uint64_t card = 0;  ///< equal for all devices of one card; 0: not known

  bool operator==(const Nic&) const = default;
};

/// Result of querying one source. An absent source is normal.
struct SourceReport {
  enum class Outcome : std::uint8_t { used, absent, failed, skipped };

  std::string source;  ///< such as "NVML, driver 580.159" or "/sys/class/infiniband"
  Outcome outcome = Outcome::used;
  std::string detail;  ///< facts contributed, or the reason for none

  bool operator==(const SourceReport&) const = default;
};

/// Limits of check(): several times the size of one machine, but small enough to examine every
/// pair.
struct MachineLimits {
  std::size_t numa = 1024;
  std::size_t pci = 32'768;
  std::size_t gpus = 256;
  std::size_t nics = 4096;
};
inline constexpr MachineLimits kMachineLimits;

struct Machine {
  std::string host;
  std::vector<NumaNode> numa;
  std::vector<PciNode> pci;  ///< parents before their children
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< at most one for each (from, to), from != to
  std::vector<Nic> nics;
  std::vector<SourceReport> sources;

  bool operator==(const Machine&) const = default;
};

/// Returns the machine in an order that does not depend on the order of listing. NUMA nodes are
/// sorted by number, PCI nodes depth first by address. GPUs are sorted by PCI address, MIG
/// instance, partition and UUID, NICs by PCI address, name and port. Pairs are sorted by their
/// GPUs. All indices are adapted.
Machine canonical(Machine machine);

/// Lines of a file that describe a machine's parts, by their indices in its lists. Empty without a
/// file.
struct MachineLines {
  std::vector<std::size_t> numa;
  std::vector<std::size_t> pci;
  std::vector<std::size_t> gpus;
  std::vector<std::size_t> nics;
};

/// Checks that no count exceeds kMachineLimits.
Status check_limits(const MachineLimits& counts, const MachineLines& lines = {});

/// Checks the limits, that all indices are valid, that the PCI nodes form trees, and that nothing
/// is listed twice. The error says what is wrong, and in which line if that is known.
Status check(const Machine& machine, const MachineLines& lines = {});

/// Names two NUMA nodes that list the same processor; empty if there are none. The kernel's nodes
/// never share processors, but some files that clouds ship do. hwloc also assigns nearby processors
/// to memory without its own.
std::string shared_processors(const std::vector<NumaNode>& nodes);

/// Returns the entry for an ordered pair; null if there is none.
const GpuPair* find_pair(const Machine& machine, int from, int to);

/// Returns the index of the PCI node with this address, or -1.
int find_pci_node(const Machine& machine, const PciAddress& address);

std::string_view name_of(SourceReport::Outcome outcome);

}  // namespace oriel::topo
