// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/machines.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

#include "topo/machine/fixture.hpp"

namespace oriel::topo {
namespace {

/// Loads each fixture once, because loading takes longer than most tests.
Machine fixture(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, Machine> loaded;
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(name);
  return known != loaded.end() ? known->second
                               : loaded.emplace(name, load_fixture(name)).first->second;
}

PciAddress address_of(const char* text) {
  return parse_pci_address(text).value();
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
  machine.numa.push_back({.os_index = os_index,
                          .package = os_index,
                          .cpus = std::move(cpus),
                          .memory_bytes = std::size_t{256} << 30});
  return static_cast<int>(machine.numa.size()) - 1;
}

int MachineBuilder::host_bridge(int numa) {
  return add({.kind = PciNode::Kind::host_bridge, .numa = numa});
}

int MachineBuilder::bridge(int parent, const char* address, double gbps) {
  const int index = device(parent, address, gbps);
  machine.pci.back().kind = PciNode::Kind::bridge;
  return index;
}

int MachineBuilder::device(int parent, const char* address, double gbps) {
  return add({.parent = parent,
              .address = address_of(address),
              .numa = machine.pci[static_cast<std::size_t>(parent)].numa,
              .link_gbps = gbps});
}

int MachineBuilder::add(PciNode node) {
  machine.pci.push_back(std::move(node));
  return static_cast<int>(machine.pci.size()) - 1;
}

int MachineBuilder::gpu(int parent, const char* address, const char* name, double gbps) {
  const int node = device(parent, address, gbps);
  const int index = static_cast<int>(machine.gpus.size());
  machine.gpus.push_back({.name = name,
                          .uuid = fmt::format("GPU-{}", address),
                          .pci = machine.pci.back().address,
                          .node = node,
                          .numa = machine.pci.back().numa,
                          .ordinal = index,
                          .nvml_index = index,
                          .pcie_gbps = gbps});
  return index;
}

int MachineBuilder::nic(int parent, const char* address, const char* name, double gbps,
                        std::uint64_t card, int port) {
  const int node = device(parent, address, gbps);
  machine.nics.push_back({.name = name,
                          .port = port,
                          .pci = machine.pci.back().address,
                          .node = node,
                          .numa = machine.pci.back().numa,
                          .gbps = gbps,
                          .guid = machine.nics.size() + 1,
                          .card = card});
  return static_cast<int>(machine.nics.size()) - 1;
}

void MachineBuilder::one_way(int from, int to, bool maps, int links) {
  machine.pairs.push_back({.from = from, .to = to, .maps = maps, .links = links});
}

void MachineBuilder::pair(int a, int b, bool maps, int links, bool atomics) {
  for (const auto& [from, to] : {std::pair(a, b), {b, a}}) {
    machine.pairs.push_back(
        {.from = from, .to = to, .maps = maps, .atomics = atomics, .links = links});
  }
}

Machine hgx_8() {
  return fixture("hgx-8");
}
Machine two_cliques() {
  return fixture("two-cliques");
}
Machine workstation() {
  return fixture("workstation");
}
Machine one_nic() {
  return fixture("one-nic");
}
Machine mig() {
  return fixture("mig");
}
Machine amd_full_mesh() {
  return fixture("amd-full-mesh");
}
Machine amd_partial_mesh() {
  return fixture("amd-partial-mesh");
}
Machine cpu_only() {
  return fixture("cpu-only");
}
Machine uneven() {
  return fixture("uneven");
}

std::vector<NamedMachine> all_machines() {
  std::vector<NamedMachine> all;
  for (const std::string& name : fixture_names()) all.push_back({name, fixture(name)});
  return all;
}

Machine random_machine(std::mt19937& random) {
  MachineBuilder build;
  const auto pick = [&](unsigned count) { return static_cast<int>(random() % count); };
  const int nodes = 1 + pick(4);
  std::vector<int> parents;
  int bus = 0;
  const auto address = [&] { return fmt::format("0000:{:02x}:{:02x}.0", ++bus, pick(32)); };
  for (int i = 0; i < nodes; ++i) {
    build.numa(3 * i + pick(3), {2 * i, 2 * i + 1});
    for (int roots = pick(3); roots >= 0; --roots) parents.push_back(build.host_bridge(i));
  }
  const double speeds[] = {0, 31.508 * 16, 15.754 * 8, 7.877 * 4};
  for (int bridges = pick(8); bridges > 0; --bridges) {
    const int parent = parents[random() % parents.size()];
    parents.push_back(build.bridge(parent, address().c_str(), speeds[pick(4)]));
  }
  const int gpus = pick(10);
  const bool switches = pick(3) == 0;
  for (int i = 0; i < gpus; ++i) {
    build.gpu(parents[random() % parents.size()], address().c_str(), "GPU", speeds[1 + pick(3)]);
    build.machine.gpus.back().switch_links = switches && pick(4) > 0 ? 18 : 0;
  }
  for (int nics = pick(10); nics > 0; --nics) {
    const std::string name = fmt::format("mlx5_{}", nics);
    build.nic(parents[random() % parents.size()], address().c_str(), name.c_str(), 100.0 * pick(5));
    build.machine.nics.back().active = pick(5) > 0;
    if (pick(4) == 0) build.machine.nics.back().layer = Nic::Layer::ethernet;
  }
  for (int a = 0; a < gpus; ++a) {
    for (int b = a + 1; b < gpus; ++b) {
      const auto linked = [&](int gpu) {
        return build.machine.gpus[static_cast<std::size_t>(gpu)].switch_links > 0;
      };
      const int links = pick(3) == 0 ? 1 + pick(6) : 0;
      if (links > 0 || (linked(a) && linked(b))) build.pair(a, b, true, links);
    }
  }
  set_distances(build.machine);
  return canonical(std::move(build.machine));
}

namespace {

/// Adds the port that a word of machine_of() describes, below `parent`.
void add_port(MachineBuilder& build, int parent, const std::string& word, int bus) {
  static const std::regex form(R"((ib|eth|odd)(\d+)(\+|v|=)?(?:#(\d+))?(?:@([0-9a-f]+))?(!?))");
  std::smatch part;
  if (!std::regex_match(word, part, form)) throw std::runtime_error("no port: " + word);
  std::vector<Nic>& nics = build.machine.nics;
  const std::string kind = part[3];
  PciAddress at{
      0, static_cast<std::uint8_t>(part[5].length() > 0 ? std::stoi(part[5], nullptr, 16) : bus), 0,
      0};
  if ((kind == "+" || kind == "v") && part[5].length() == 0) {
    at = *nics.back().pci;
    ++at.function;
  }
  const std::string name = part[1].str() + std::to_string(nics.size());
  build.nic(parent, at.to_string().c_str(), name.c_str(), std::stod(part[2]),
            part[4].length() > 0 ? std::stoull(part[4]) : 0);
  Nic& nic = nics.back();
  nic.layer = part[1] == "ib"    ? Nic::Layer::infiniband
              : part[1] == "eth" ? Nic::Layer::ethernet
                                 : Nic::Layer::other;
  nic.active = part[6].length() == 0;
  if (kind == "=") nic.guid = nics[nics.size() - 2].guid;
  if (kind != "v") return;
  const auto real = std::find_if(nics.rbegin() + 1, nics.rend(),
                                 [](const Nic& other) { return !other.physical; });
  nic.physical = real->pci;
}

}  // namespace

Machine machine_of(const std::string& text) {
  MachineBuilder build;
  std::vector<int> parents;
  std::istringstream words(text);
  int bus = 0;
  for (std::string word; words >> word;) {
    ++bus;
    const std::string address = PciAddress{0, static_cast<std::uint8_t>(bus), 0, 0}.to_string();
    const int numa = static_cast<int>(build.machine.numa.size());
    if (word == "n(") {
      parents.push_back(build.host_bridge(build.numa(numa, {numa})));
    } else if (word == "?(") {
      parents.push_back(build.host_bridge(-1));
    } else if (word == "b(") {
      parents.push_back(build.bridge(parents.back(), address.c_str()));
    } else if (word == ")") {
      parents.pop_back();
    } else if (word[0] == 'g') {
      build.gpu(parents.back(), address.c_str());
      if (word == "g?") build.machine.gpus.back().node = build.machine.gpus.back().numa = -1;
    } else {
      add_port(build, parents.back(), word, bus);
    }
  }
  return canonical(std::move(build.machine));
}

std::string nics_text(const Machine& machine) {
  const auto text = [](const std::vector<NicChoice>& choices) {
    std::string list;
    const auto number = [](int nic) { return nic < 0 ? "-" : std::to_string(nic); };
    for (const NicChoice& one : choices) {
      list += fmt::format("{}/{} ", number(one.primary), number(one.backup));
    }
    return list;
  };
  std::string all = text(choose_nics(machine)) + "| " + text(choose_nics_of_numa_nodes(machine));
  all.pop_back();
  return all;
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
  // Takes any order in which parents precede their children.
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
