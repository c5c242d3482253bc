// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "topo/choice/reach.hpp"
#include "topo/model/distance.hpp"
#include "topology/summary.hpp"

namespace oriel::tools {
namespace {

using Json = nlohmann::json;

/// Writes a document piece by piece. A Json value of the whole would take many times the memory.
/// Its destructor allocates too, and ends the program if that fails.
class Writer {
 public:
  std::string take() { return std::move(text_) + "\n"; }

  template <typename Fill>
  void object(const Fill& fill, const char* key = nullptr) {
    nested(key, '{', '}', fill);
  }
  template <typename Fill>
  void array(const char* key, const Fill& fill) {
    nested(key, '[', ']', fill);
  }
  /// Appends a number, string, boolean or null.
  void put(const char* key, const Json& value) {
    begin(key);
    // Replaces invalid UTF-8, which names from files may contain.
    text_ += value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  template <typename Item>
  void list(const char* key, const std::vector<Item>& items) {
    array(key, [&] {
      for (const Item& item : items) put(nullptr, item);
    });
  }

 private:
  void begin(const char* key) {
    if (!first_) text_ += ',';
    if (depth_ > 0) new_line();
    first_ = false;
    if (key != nullptr) text_ += fmt::format("\"{}\": ", key);
  }
  template <typename Fill>
  void nested(const char* key, char open, char close, const Fill& fill) {
    begin(key);
    text_ += open;
    ++depth_;
    first_ = true;
    fill();
    --depth_;
    if (!first_) new_line();
    first_ = false;
    text_ += close;
  }
  void new_line() { text_.append("\n").append(2 * depth_, ' '); }

  std::string text_;
  std::size_t depth_ = 0;
  bool first_ = true;  // no value yet in the current object or array
};

Json address_of(const std::optional<topo::PciAddress>& address) {
  return address ? Json(address->to_string()) : Json(nullptr);
}

Json index_of(int index) {
  return index >= 0 ? Json(index) : Json(nullptr);
}

Json bandwidth_of(double gbps) {
  return gbps > 0 ? Json(gbps) : Json(nullptr);
}

Json count_of(int count) {
  return count > 0 ? Json(count) : Json(nullptr);
}

Json number_of(std::uint64_t number) {  // in hexadecimal, as NCCL's XML has GUIDs
  return number != 0 ? Json(fmt::format("0x{:x}", number)) : Json(nullptr);
}

Json capability_of(const topo::Gpu& gpu) {
  if (gpu.architecture <= 0) return nullptr;
  return fmt::format("{}.{}", gpu.architecture / 10, gpu.architecture % 10);
}

void put_clique(Writer& out, const std::optional<topo::FabricClique>& fabric) {
  if (!fabric) return out.put("fabric_clique", nullptr);
  std::string cluster;
  for (const std::byte one : fabric->cluster) {
    cluster += fmt::format("{:02x}", std::to_integer<unsigned>(one));
  }
  out.object(
      [&] {
        out.put("cluster", cluster);
        out.put("clique", fabric->clique);
      },
      "fabric_clique");
}

void put_choice(Writer& out, const topo::NicChoice& choice) {
  out.object(
      [&] {
        out.put("nic", index_of(choice.primary));
        out.put("backup", index_of(choice.backup));
        out.put("distance", topo::name_of(choice.distance));
        out.put("reason", choice.reason);
      },
      "choice");
}

void put_affinity(Writer& out, const char* key, const topo::Affinity& affinity) {
  out.object(
      [&] {
        out.list("cpus", affinity.cpus);
        out.put("memory_node", index_of(affinity.memory_node));
        out.put("kept_away", affinity.kept_away);
      },
      key);
}

void put_interfaces(Writer& out, const char* key, const topo::InterfaceChoice* choice) {
  if (choice == nullptr) return out.put(key, nullptr);
  out.object(
      [&] {
        out.put("primary", choice->primary);
        out.put("backup", choice->backup);
        out.list("all", choice->all);
        out.put("reason", choice->reason);
      },
      key);
}

void put_numa_node(Writer& out, const topo::NumaNode& node, const topo::NicChoice& choice) {
  out.object([&] {
    out.put("number", node.os_index);
    out.put("package", index_of(node.package));
    out.list("cpus", node.cpus);
    out.put("memory_bytes", node.memory_bytes);
    out.put("memory_gbps", bandwidth_of(node.memory_gbps));
    out.list("distances", node.distances);
    put_choice(out, choice);
  });
}

void put_pci_node(Writer& out, const topo::PciNode& node) {
  constexpr const char* kKinds[] = {"host bridge", "bridge", "device"};
  out.object([&] {
    out.put("kind", kKinds[static_cast<std::size_t>(node.kind)]);
    out.put("address", address_of(node.address));
    out.put("parent", index_of(node.parent));
    out.put("numa_node", index_of(node.numa));
    out.put("link_gbps", bandwidth_of(node.link_gbps));
    out.put("link_now_gbps", bandwidth_of(node.link_now_gbps));
    out.put("lanes", count_of(node.lanes));
    out.put("lanes_now", count_of(node.lanes_now));
  });
}

void put_facts_of_gpu(Writer& out, const topo::Gpu& gpu) {
  constexpr const char* kVendors[] = {"NVIDIA", "AMD", "other"};
  out.put("name", gpu.name);
  out.put("vendor", kVendors[static_cast<std::size_t>(gpu.vendor)]);
  out.put("uuid", gpu.uuid);
  out.put("pci", address_of(gpu.pci));
  out.put("pci_node", index_of(gpu.node));
  out.put("numa_node", index_of(gpu.numa));
  out.put("cuda_device", index_of(gpu.ordinal));
  out.put("nvml_index", index_of(gpu.nvml_index));
  out.put("mig_instance", index_of(gpu.mig_instance));
  out.put("partition", index_of(gpu.partition));
  out.put("compute_capability", capability_of(gpu));
  put_clique(out, gpu.fabric);
  out.put("links_to_switches", gpu.switch_links);
  out.put("link_gbps", bandwidth_of(gpu.link_gbps));
  out.put("pcie_gbps", bandwidth_of(gpu.pcie_gbps));
  out.put("pcie_now_gbps", bandwidth_of(gpu.pcie_now_gbps));
  out.put("file_descriptor_handles", gpu.fd_handles);
  out.put("fabric_handles", gpu.fabric_handles);
}

void put_gpu(Writer& out, const Summary& summary, std::size_t i) {
  out.object([&] {
    put_facts_of_gpu(out, summary.machine.gpus[i]);
    out.list("mapped_by", summary.reach[i]);
    out.put("team", summary.team[i]);
    out.put("rail", summary.rail[i]);
    put_affinity(out, "affinity", summary.affinities[i]);
    put_choice(out, summary.nics[i]);
    put_interfaces(out, "interfaces",
                   i < summary.interfaces.size() ? &summary.interfaces[i] : nullptr);
  });
}

void put_nic(Writer& out, const topo::Nic& nic) {
  constexpr const char* kLayers[] = {"InfiniBand", "Ethernet", "other"};
  out.object([&] {
    out.put("name", nic.name);
    out.put("port", nic.port);
    out.put("interface", nic.interface);
    out.put("pci", address_of(nic.pci));
    out.put("physical_function", address_of(nic.physical));
    out.put("pci_node", index_of(nic.node));
    out.put("numa_node", index_of(nic.numa));
    out.put("link_layer", kLayers[static_cast<std::size_t>(nic.layer)]);
    out.put("active", nic.active);
    out.put("gbps", bandwidth_of(nic.gbps));
    out.put("guid", number_of(nic.guid));
    out.put("card", number_of(nic.card));
  });
}

void put_path(Writer& out, const Summary& summary, int from, int to) {
  const topo::Path& path =
      summary.paths[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  const topo::GpuPair* const pair = topo::find_pair(summary.machine, from, to);
  out.object([&] {
    out.put("from", from);
    out.put("to", to);
    out.put("kind", topo::name_of(summary.machine, from, path.kind));
    out.put("maps", topo::reach_is_known(summary.machine, from, to)
                        ? Json(topo::may_map(summary.machine, from, to))
                        : Json(nullptr));  // null: no source says
    out.put("links", pair == nullptr ? 0 : pair->links);
    out.put("hops", path.hops);
    out.put("gbps", bandwidth_of(path.gbps));
    out.put("atomics", path.atomics);
    out.put("distance", topo::name_of(path.distance));
  });
}

void put_decisions(Writer& out, const Summary& summary) {
  out.array("teams", [&] {
    for (const std::vector<int>& team : summary.teams) out.list(nullptr, team);
  });
  out.put("pairs_of_unknown_reach", summary.unknown_pairs);
  out.array("paths", [&] {
    const auto count = static_cast<int>(summary.paths.size());
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from != to) put_path(out, summary, from, to);
      }
    }
  });
  if (summary.processors) {
    put_affinity(out, "cpu_rank", *summary.processors);
  } else {
    out.put("cpu_rank", nullptr);
  }
  put_interfaces(out, "cpu_rank_interfaces",
                 summary.cpu_interfaces ? &*summary.cpu_interfaces : nullptr);
}

void put_source(Writer& out, const topo::SourceReport& source) {
  out.object([&] {
    out.put("source", source.source);
    out.put("outcome", topo::name_of(source.outcome));
    out.put("detail", source.detail);
  });
}

}  // namespace

std::string json_of(const Summary& summary) {
  const topo::Machine& machine = summary.machine;
  Writer out;
  out.object([&] {
    out.put("format", 1);
    out.put("host", machine.host);
    out.array("numa_nodes", [&] {
      for (std::size_t i = 0; i < machine.numa.size(); ++i) {
        put_numa_node(out, machine.numa[i], summary.numa_nics[i]);
      }
    });
    out.array("pci_nodes", [&] {
      for (const topo::PciNode& node : machine.pci) put_pci_node(out, node);
    });
    out.array("gpus", [&] {
      for (std::size_t i = 0; i < machine.gpus.size(); ++i) put_gpu(out, summary, i);
    });
    out.array("nics", [&] {
      for (const topo::Nic& nic : machine.nics) put_nic(out, nic);
    });
    put_decisions(out, summary);
    out.array("sources", [&] {
      for (const topo::SourceReport& source : machine.sources) put_source(out, source);
    });
  });
  return out.take();
}

}  // namespace oriel::tools
