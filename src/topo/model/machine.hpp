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

/// What a machine is made of, as far as moving data goes. Plain values: discovery fills them in, a
/// file can too, and everything that decides (reach, teams, NICs, paths) is a function of them.
namespace oriel::topo {

/// Memory with the processors beside it.
struct NumaNode {
  int os_index = 0;
  int package = -1;       ///< the socket; -1: not known
  std::vector<int> cpus;  ///< the system's numbers, ascending; empty: memory without processors
  std::size_t memory_bytes = 0;
  /// Of reading it from the nearest processors, in Gbit/s; 0 where the firmware is silent.
  double memory_gbps = 0;
  /// To each entry of Machine::numa, in its order; 10 is local. Empty where the firmware is silent.
  std::vector<int> distances;

  bool operator==(const NumaNode&) const = default;
};

/// A piece of the tree of PCI buses.
struct PciNode {
  enum class Kind : std::uint8_t { host_bridge, bridge, device };

  Kind kind = Kind::device;
  int parent = -1;                    ///< in Machine::pci; -1 for a host bridge
  std::optional<PciAddress> address;  ///< host bridges may have none
  int numa = -1;                      ///< in Machine::numa; -1: not known
  double link_gbps = 0;      ///< the most, in Gbit/s one way towards the parent; 0: not known
  double link_now_gbps = 0;  ///< what it carries at this moment; 0: not known
  int lanes = 0;             ///< of the link, as many as both its ends have; 0: not known
  int lanes_now = 0;         ///< those in use. Idle links slow down, but keep their lanes

  bool operator==(const PciNode&) const = default;
};

enum class GpuVendor : std::uint8_t { nvidia, amd, other };

/// GPUs with the same identity reach each other's memory through one fabric of NVLink switches,
/// also between hosts.
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
  std::string uuid;      ///< as its vendor's tool prints it; unique, may be empty
  std::optional<PciAddress> pci;
  int node = -1;     ///< in Machine::pci; -1: not in the tree
  int numa = -1;     ///< in Machine::numa
  int ordinal = -1;  ///< CUDA's in this process; -1: hidden from it
  /// NVML's, of the whole GPU, as NCCL's files have it; -1: not known. No identity: of files joined
  /// from processes in containers that hide GPUs, several GPUs may have the same.
  int nvml_index = -1;
  int mig_instance = -1;  ///< -1: a whole GPU
  int partition = -1;     ///< the same; partitions share a PCI function and map each other's memory
  int switch_links = 0;   ///< links to NVLink switches
  double link_gbps = 0;   ///< of one NVLink or xGMI link, one way; 0: not known
  /// The most that its PCIe link carries, one way; 0: not known. Decisions go by this: an idle link
  /// slows down to save power.
  double pcie_gbps = 0;
  double pcie_now_gbps = 0;  ///< what it carries at this moment; 0: not known
  std::optional<FabricClique> fabric;
  bool fd_handles = false;      ///< its memory can be exported as a file descriptor
  bool fabric_handles = false;  ///< and as a fabric handle

  bool operator==(const Gpu&) const = default;
};

/// What one GPU is to another: a fact of one direction, which need not hold in the other.
struct GpuPair {
  int from = 0;  ///< in Machine::gpus: the one that maps
  int to = 0;    ///< the one whose memory is mapped
  /// Whether `from` may map the memory of `to`; nothing where no source says.
  std::optional<bool> maps;
  bool atomics = false;  ///< native ones over this path
  int links = 0;         ///< direct NVLink or xGMI links between the two
  int hops = 0;          ///< over such links, where they are not neighbours; 0: not known
  /// What the direct links carry together, one way, where that is told of this pair. 0: it is not,
  /// and what links of the two GPUs carry counts.
  double gbps = 0;

  bool operator==(const GpuPair&) const = default;
};

/// One port of a network card that does RDMA.
struct Nic {
  enum class Layer : std::uint8_t { infiniband, ethernet, other };

  std::string name;  ///< the device, such as "mlx5_0"
  int port = 1;
  std::string interface;  ///< the network interface, such as "ens1f0"; may be empty
  std::optional<PciAddress> pci;
  std::optional<PciAddress> physical;  ///< of a virtual function or subfunction: the physical one
  int node = -1;                       ///< in Machine::pci
  int numa = -1;                       ///< in Machine::numa
  Layer layer = Layer::infiniband;
  bool active = true;
  double gbps = 0;
  std::uint64_t guid = 0;  ///< of the device
  std::uint64_t card = 0;  ///< the same for all devices of one card; 0: not known

  bool operator==(const Nic&) const = default;
};

/// What came of asking one source. One that is absent is normal.
struct SourceReport {
  enum class Outcome : std::uint8_t { used, absent, failed, skipped };

  std::string source;  ///< such as "NVML 12.580" or "/sys/class/infiniband"
  Outcome outcome = Outcome::used;
  std::string detail;  ///< what it gave, or why it did not

  bool operator==(const SourceReport&) const = default;
};

/// What check() lets pass at most: several times what one machine has, and little enough to decide
/// about every pair.
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

/// The same machine with everything in an order that does not depend on who listed it: NUMA nodes
/// by number, PCI nodes depth first by address, GPUs by PCI address, MIG instance and UUID, NICs by
/// PCI address, name and port, pairs by their GPUs. All indices follow.
Machine canonical(Machine machine);

/// The lines of a file that describe a machine's things, by their places in its lists. Empty ones
/// where there is no file.
struct MachineLines {
  std::vector<std::size_t> numa;
  std::vector<std::size_t> pci;
  std::vector<std::size_t> gpus;
  std::vector<std::size_t> nics;
};

/// Whether there are no more things than kMachineLimits says.
Status check_limits(const MachineLimits& counts, const MachineLines& lines = {});

/// Whether that is so, all indices point somewhere, the PCI tree is one, and nothing is listed
/// twice. The error says what is wrong, and in which line if that is known.
Status check(const Machine& machine, const MachineLines& lines = {});

/// Two NUMA nodes that both name a processor, in words; empty if there are none. The kernel's never
/// do, but files that clouds ship give several nodes the same ones, and to hwloc the processors of
/// memory without any are those nearby.
std::string shared_processors(const std::vector<NumaNode>& nodes);

/// The fact about an ordered pair; null if there is none.
const GpuPair* find_pair(const Machine& machine, int from, int to);

/// The PCI node with this address, or -1.
int find_pci_node(const Machine& machine, const PciAddress& address);

std::string_view name_of(SourceReport::Outcome outcome);

}  // namespace oriel::topo
