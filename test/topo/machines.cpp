// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machines.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

constexpr double kNvlinkGbps = 212.5;  // of one link of the fourth generation, one way

PciAddress address_of(const char* text) {
  return parse_pci_address(text).value();
}

std::vector<int> range(int first, int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

void set_distances(Machine& machine) {
  for (NumaNode& node : machine.numa) {
    for (const NumaNode& other : machine.numa) {
      node.distances.push_back(node.os_index == other.os_index ? 10 : 21);
    }
  }
}

}  // namespace

int MachineBuilder::numa(int os_index, std::vector<int> cpus) {
  NumaNode node;
  node.os_index = os_index;
  node.package = os_index;
  node.cpus = std::move(cpus);
  node.memory_bytes = std::size_t{256} << 30;
  machine.numa.push_back(std::move(node));
  return static_cast<int>(machine.numa.size()) - 1;
}

int MachineBuilder::host_bridge(int numa) {
  PciNode node;
  node.kind = PciNode::Kind::host_bridge;
  node.numa = numa;
  machine.pci.push_back(node);
  return static_cast<int>(machine.pci.size()) - 1;
}

int MachineBuilder::bridge(int parent, const char* address, double gbps) {
  const int index = device(parent, address, gbps);
  machine.pci.back().kind = PciNode::Kind::bridge;
  return index;
}

int MachineBuilder::device(int parent, const char* address, double gbps) {
  PciNode node;
  node.kind = PciNode::Kind::device;
  node.parent = parent;
  node.address = address_of(address);
  node.numa = machine.pci[static_cast<std::size_t>(parent)].numa;
  node.link_gbps = gbps;
  machine.pci.push_back(node);
  return static_cast<int>(machine.pci.size()) - 1;
}

int MachineBuilder::gpu(int parent, const char* address, const char* name, double gbps) {
  Gpu gpu;
  gpu.node = device(parent, address, gbps);
  gpu.numa = machine.pci.back().numa;
  gpu.pci = machine.pci.back().address;
  gpu.name = name;
  gpu.pcie_gbps = gbps;
  gpu.uuid = fmt::format("GPU-{}", address);
  gpu.ordinal = static_cast<int>(machine.gpus.size());
  machine.gpus.push_back(std::move(gpu));
  return static_cast<int>(machine.gpus.size()) - 1;
}

int MachineBuilder::nic(int parent, const char* address, const char* name, double gbps,
                        std::uint64_t card, int port) {
  Nic nic;
  nic.node = device(parent, address, gbps);
  nic.numa = machine.pci.back().numa;
  nic.pci = machine.pci.back().address;
  nic.name = name;
  nic.port = port;
  nic.gbps = gbps;
  nic.card = card;
  nic.guid = machine.nics.size() + 1;
  machine.nics.push_back(std::move(nic));
  return static_cast<int>(machine.nics.size()) - 1;
}

void MachineBuilder::one_way(int from, int to, bool maps, int links) {
  GpuPair pair;
  pair.from = from;
  pair.to = to;
  pair.maps = maps;
  pair.links = links;
  machine.pairs.push_back(pair);
}

void MachineBuilder::pair(int a, int b, bool maps, int links, bool atomics) {
  one_way(a, b, maps, links);
  machine.pairs.back().atomics = atomics;
  one_way(b, a, maps, links);
  machine.pairs.back().atomics = atomics;
}

Machine hgx_8() {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    build.numa(socket, range(socket * 56, 56));
    for (int half = 0; half < 2; ++half) {
      const int bus = 0x10 + socket * 0x80 + half * 0x40;
      const int root = build.host_bridge(socket);
      const auto at = [&](int number) { return fmt::format("0000:{:02x}:00.0", bus + number); };
      const int up = build.bridge(root, at(0).c_str(), 500);
      for (int port = 0; port < 2; ++port) {
        const int first = 1 + port * 4;
        const int number = socket * 4 + half * 2 + port;
        const int down = build.bridge(up, at(first).c_str(), 500);
        build.gpu(down, at(first + 1).c_str(), "NVIDIA H200");
        const int nic_port = build.bridge(up, at(first + 2).c_str(), 500);
        build.nic(nic_port, at(first + 3).c_str(), fmt::format("mlx5_{}", number).c_str(), 400,
                  100 + static_cast<std::uint64_t>(number));
      }
    }
  }
  for (Gpu& gpu : build.machine.gpus) {
    gpu.switch_links = 18;
    gpu.link_gbps = kNvlinkGbps;
    gpu.fd_handles = true;
  }
  for (int a = 0; a < 8; ++a) {
    for (int b = a + 1; b < 8; ++b) build.pair(a, b, true, 0, true);
  }
  set_distances(build.machine);
  return canonical(std::move(build.machine));
}

Machine two_cliques() {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    build.numa(socket, range(socket * 16, 16));
    const int root = build.host_bridge(socket);
    for (int i = 0; i < 4; ++i) {
      const std::string address = fmt::format("0000:{:02x}:00.0", 0x20 + socket * 0x60 + i);
      build.gpu(root, address.c_str(), "NVIDIA A100-SXM4-40GB", 250);
    }
  }
  for (Gpu& gpu : build.machine.gpus) gpu.link_gbps = 200;
  for (int a = 0; a < 8; ++a) {
    for (int b = a + 1; b < 8; ++b) {
      const bool same = a / 4 == b / 4;
      build.pair(a, b, same, same ? 4 : 0, same);
    }
  }
  set_distances(build.machine);
  return canonical(std::move(build.machine));
}

Machine workstation() {
  MachineBuilder build;
  build.numa(0, range(0, 32));
  const int root = build.host_bridge(0);
  build.gpu(build.bridge(root, "0000:00:01.0", 250), "0000:01:00.0", "NVIDIA RTX 6000 Ada", 250);
  build.gpu(build.bridge(root, "0000:00:02.0", 250), "0000:02:00.0", "NVIDIA RTX 6000 Ada", 125);
  build.pair(0, 1, true);
  return canonical(std::move(build.machine));
}

Machine one_nic() {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    build.numa(socket, range(socket * 8, 8));
    const int root = build.host_bridge(socket);
    for (int i = 0; i < 2; ++i) {
      const std::string address = fmt::format("0000:{:02x}:00.0", 0x10 + socket * 0x80 + i);
      build.gpu(root, address.c_str(), "NVIDIA L40S", 250);
    }
    if (socket == 0) build.nic(root, "0000:18:00.0", "mlx5_0", 100, 7);
  }
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) build.pair(a, b, a / 2 == b / 2);
  }
  set_distances(build.machine);
  return canonical(std::move(build.machine));
}

Machine mig() {
  MachineBuilder build;
  build.numa(0, range(0, 8));
  const int root = build.host_bridge(0);
  const int whole = build.gpu(root, "0000:65:00.0", "NVIDIA H200 MIG 2g.35gb", 500);
  build.nic(root, "0000:66:00.0", "mlx5_0", 200, 3);
  Gpu& first = build.machine.gpus[static_cast<std::size_t>(whole)];
  first.mig_instance = 0;
  first.uuid = "MIG-0";
  for (int i = 1; i < 3; ++i) {
    Gpu next = build.machine.gpus.front();
    next.mig_instance = i;
    next.uuid = fmt::format("MIG-{}", i);
    next.ordinal = -1;  // CUDA shows one instance to a process
    build.machine.gpus.push_back(next);
  }
  return canonical(std::move(build.machine));
}

Machine amd_full_mesh() {
  MachineBuilder build;
  for (int socket = 0; socket < 2; ++socket) {
    build.numa(socket, range(socket * 48, 48));
    for (int i = 0; i < 4; ++i) {
      const int bus = 0x05 + socket * 0x80 + i * 0x10;
      const int root = build.host_bridge(socket);
      const int gpu =
          build.gpu(root, fmt::format("0000:{:02x}:00.0", bus).c_str(), "AMD Instinct MI300X", 500);
      build.machine.gpus[static_cast<std::size_t>(gpu)].vendor = GpuVendor::amd;
      build.machine.gpus[static_cast<std::size_t>(gpu)].link_gbps = 512;
      build.nic(root, fmt::format("0000:{:02x}:00.0", bus + 4).c_str(),
                fmt::format("bnxt_re{}", socket * 4 + i).c_str(), 400);
    }
  }
  for (int a = 0; a < 8; ++a) {
    for (int b = a + 1; b < 8; ++b) build.pair(a, b, true, 1, true);
  }
  set_distances(build.machine);
  return canonical(std::move(build.machine));
}

Machine amd_partial_mesh() {
  MachineBuilder build;
  build.numa(0, range(0, 64));
  for (int i = 0; i < 8; ++i) {
    const int root = build.host_bridge(0);
    const std::string address = fmt::format("0000:{:02x}:00.0", 0x10 + i * 0x10);
    const int gpu = build.gpu(root, address.c_str(), "AMD Instinct MI210", 250);
    build.machine.gpus[static_cast<std::size_t>(gpu)].vendor = GpuVendor::amd;
    build.machine.gpus[static_cast<std::size_t>(gpu)].link_gbps = 400;
  }
  for (int a = 0; a < 8; ++a) {
    for (int b = a + 1; b < 8; ++b) {
      const int apart = std::min(b - a, 8 - (b - a));
      build.pair(a, b, apart <= 2, apart == 1 ? 1 : 0);
      for (std::size_t last : {build.machine.pairs.size() - 1, build.machine.pairs.size() - 2}) {
        build.machine.pairs[last].hops = apart <= 2 ? apart : 0;
      }
    }
  }
  return canonical(std::move(build.machine));
}

Machine cpu_only() {
  MachineBuilder build;
  build.numa(0, range(0, 4));
  build.numa(1, range(4, 4));
  const int root = build.host_bridge(1);
  build.nic(root, "0000:81:00.0", "mlx5_0", 100, 5, 1);
  build.nic(root, "0000:81:00.1", "mlx5_1", 100, 5, 1);
  set_distances(build.machine);
  return canonical(std::move(build.machine));
}

std::vector<NamedMachine> all_machines() {
  return {{"HGX with 8 GPUs", hgx_8()},
          {"two cliques of 4", two_cliques()},
          {"workstation", workstation()},
          {"two sockets, one NIC", one_nic()},
          {"MIG", mig()},
          {"AMD full mesh", amd_full_mesh()},
          {"AMD partial mesh", amd_partial_mesh()},
          {"CPU only", cpu_only()}};
}

Machine shuffled(const Machine& machine, unsigned seed) {
  std::mt19937 random(seed);
  Machine other = machine;
  const auto order_of = [&](std::size_t count) {
    std::vector<int> place(count);
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), random);
    return place;
  };
  const auto move = [](int& index, const std::vector<int>& place) {
    if (index >= 0) index = place[static_cast<std::size_t>(index)];
  };
  const auto apply = [](auto& items, const std::vector<int>& place) {
    const auto old = items;
    for (std::size_t i = 0; i < old.size(); ++i) items[static_cast<std::size_t>(place[i])] = old[i];
  };
  const auto numa = order_of(machine.numa.size());
  apply(other.numa, numa);
  for (NumaNode& node : other.numa) {
    if (!node.distances.empty()) apply(node.distances, numa);
  }
  // Any order in which parents come before their children.
  std::vector<int> pci(machine.pci.size(), -1);
  other.pci.clear();
  while (other.pci.size() < machine.pci.size()) {
    const std::size_t next = random() % machine.pci.size();
    const PciNode& node = machine.pci[next];
    const bool parent_waits = node.parent >= 0 && pci[static_cast<std::size_t>(node.parent)] < 0;
    if (pci[next] >= 0 || parent_waits) continue;
    pci[next] = static_cast<int>(other.pci.size());
    other.pci.push_back(node);
    move(other.pci.back().parent, pci);
  }
  const auto gpus = order_of(machine.gpus.size());
  apply(other.gpus, gpus);
  apply(other.nics, order_of(machine.nics.size()));
  apply(other.pairs, order_of(machine.pairs.size()));
  for (PciNode& node : other.pci) move(node.numa, numa);
  for (Gpu& gpu : other.gpus) {
    move(gpu.numa, numa);
    move(gpu.node, pci);
  }
  for (Nic& nic : other.nics) {
    move(nic.numa, numa);
    move(nic.node, pci);
  }
  for (GpuPair& pair : other.pairs) {
    move(pair.from, gpus);
    move(pair.to, gpus);
  }
  return other;
}

}  // namespace oriel::topo
