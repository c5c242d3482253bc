// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "topo/distance.hpp"
#include "topology/summary.hpp"

namespace oriel::tools {
namespace {

using Json = nlohmann::ordered_json;

Json address_of(const std::optional<topo::PciAddress>& address) {
  return address ? Json(address->to_string()) : Json(nullptr);
}

Json index_of(int index) {
  return index >= 0 ? Json(index) : Json(nullptr);
}

Json bandwidth_of(double gbps) {
  return gbps > 0 ? Json(gbps) : Json(nullptr);
}

Json number_of(std::uint64_t number) {  // in hexadecimal, as files have it
  return number != 0 ? Json(fmt::format("0x{:x}", number)) : Json(nullptr);
}

Json clique_of(const std::optional<topo::FabricClique>& fabric) {
  if (!fabric) return nullptr;
  std::string cluster;
  for (const std::byte one : fabric->cluster) {
    cluster += fmt::format("{:02x}", std::to_integer<unsigned>(one));
  }
  return {{"cluster", cluster}, {"clique", fabric->clique}};
}

Json capability_of(const topo::Gpu& gpu) {
  if (gpu.architecture <= 0) return nullptr;
  return fmt::format("{}.{}", gpu.architecture / 10, gpu.architecture % 10);
}

Json choice_of(const topo::NicChoice& choice) {
  return {{"nic", index_of(choice.primary)},
          {"backup", index_of(choice.backup)},
          {"distance", topo::name_of(choice.distance)},
          {"reason", choice.reason}};
}

Json affinity_of(const topo::Affinity& affinity) {
  return {{"cpus", affinity.cpus},
          {"memory_node", index_of(affinity.memory_node)},
          {"kept_away", affinity.kept_away}};
}

Json interfaces_of(const topo::InterfaceChoice& choice) {
  return {{"primary", choice.primary},
          {"backup", choice.backup},
          {"all", choice.all},
          {"reason", choice.reason}};
}

Json numa_nodes(const Summary& summary) {
  Json list = Json::array();
  for (std::size_t i = 0; i < summary.machine.numa.size(); ++i) {
    const topo::NumaNode& node = summary.machine.numa[i];
    list.push_back({{"number", node.os_index},
                    {"package", index_of(node.package)},
                    {"cpus", node.cpus},
                    {"memory_bytes", node.memory_bytes},
                    {"memory_gbps", bandwidth_of(node.memory_gbps)},
                    {"distances", node.distances},
                    {"choice", choice_of(summary.numa_nics[i])}});
  }
  return list;
}

Json pci_nodes(const topo::Machine& machine) {
  constexpr const char* kKinds[] = {"host bridge", "bridge", "device"};
  Json list = Json::array();
  for (const topo::PciNode& node : machine.pci) {
    list.push_back({{"kind", kKinds[static_cast<std::size_t>(node.kind)]},
                    {"address", address_of(node.address)},
                    {"parent", index_of(node.parent)},
                    {"numa_node", index_of(node.numa)},
                    {"link_gbps", bandwidth_of(node.link_gbps)}});
  }
  return list;
}

Json gpus(const Summary& summary) {
  constexpr const char* kVendors[] = {"NVIDIA", "AMD", "other"};
  Json list = Json::array();
  for (std::size_t i = 0; i < summary.machine.gpus.size(); ++i) {
    const topo::Gpu& gpu = summary.machine.gpus[i];
    list.push_back(
        {{"name", gpu.name},
         {"vendor", kVendors[static_cast<std::size_t>(gpu.vendor)]},
         {"uuid", gpu.uuid},
         {"pci", address_of(gpu.pci)},
         {"pci_node", index_of(gpu.node)},
         {"numa_node", index_of(gpu.numa)},
         {"cuda_device", index_of(gpu.ordinal)},
         {"mig_instance", index_of(gpu.mig_instance)},
         {"partition", index_of(gpu.partition)},
         {"compute_capability", capability_of(gpu)},
         {"fabric_clique", clique_of(gpu.fabric)},
         {"links_to_switches", gpu.switch_links},
         {"link_gbps", bandwidth_of(gpu.link_gbps)},
         {"pcie_gbps", bandwidth_of(gpu.pcie_gbps)},
         {"pcie_now_gbps", bandwidth_of(gpu.pcie_now_gbps)},
         {"file_descriptor_handles", gpu.fd_handles},
         {"fabric_handles", gpu.fabric_handles},
         {"mapped_by", summary.reach[i]},
         {"team", summary.team[i]},
         {"rail", summary.rail[i]},
         {"affinity", affinity_of(summary.affinities[i])},
         {"choice", choice_of(summary.nics[i])},
         {"interfaces",
          i < summary.interfaces.size() ? interfaces_of(summary.interfaces[i]) : Json(nullptr)}});
  }
  return list;
}

Json nics(const topo::Machine& machine) {
  constexpr const char* kLayers[] = {"InfiniBand", "Ethernet", "other"};
  Json list = Json::array();
  for (const topo::Nic& nic : machine.nics) {
    list.push_back({{"name", nic.name},
                    {"port", nic.port},
                    {"interface", nic.interface},
                    {"pci", address_of(nic.pci)},
                    {"physical_function", address_of(nic.physical)},
                    {"pci_node", index_of(nic.node)},
                    {"numa_node", index_of(nic.numa)},
                    {"link_layer", kLayers[static_cast<std::size_t>(nic.layer)]},
                    {"active", nic.active},
                    {"gbps", bandwidth_of(nic.gbps)},
                    {"guid", number_of(nic.guid)},
                    {"card", number_of(nic.card)}});
  }
  return list;
}

Json paths(const Summary& summary) {
  Json list = Json::array();
  for (std::size_t from = 0; from < summary.paths.size(); ++from) {
    for (std::size_t to = 0; to < summary.paths.size(); ++to) {
      const topo::Path& path = summary.paths[from][to];
      if (from == to) continue;
      const topo::GpuPair* const pair =
          topo::find_pair(summary.machine, static_cast<int>(from), static_cast<int>(to));
      list.push_back({{"from", from},
                      {"to", to},
                      {"kind", topo::name_of(summary.machine, static_cast<int>(from), path.kind)},
                      {"links", pair == nullptr ? 0 : pair->links},
                      {"hops", path.hops},
                      {"gbps", bandwidth_of(path.gbps)},
                      {"atomics", path.atomics},
                      {"distance", topo::name_of(path.distance)}});
    }
  }
  return list;
}

}  // namespace

std::string json_of(const Summary& summary) {
  Json sources = Json::array();
  for (const topo::SourceReport& one : summary.machine.sources) {
    sources.push_back(
        {{"source", one.source}, {"outcome", topo::name_of(one.outcome)}, {"detail", one.detail}});
  }
  const Json document = {
      {"format", 1},
      {"host", summary.machine.host},
      {"numa_nodes", numa_nodes(summary)},
      {"pci_nodes", pci_nodes(summary.machine)},
      {"gpus", gpus(summary)},
      {"nics", nics(summary.machine)},
      {"teams", summary.teams},
      {"pairs_of_unknown_reach", summary.unknown_pairs},
      {"paths", paths(summary)},
      {"cpu_rank", summary.processors ? affinity_of(*summary.processors) : Json(nullptr)},
      {"cpu_rank_interfaces",
       summary.cpu_interfaces ? interfaces_of(*summary.cpu_interfaces) : Json(nullptr)},
      {"sources", sources}};
  // Names from files may be no UTF-8.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace oriel::tools
