// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/nvml_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "topo/model/pcie_speed.hpp"

namespace oriel::topo {
namespace {

using Constants = NvmlConstants;

std::string status_text(NvmlStatus status) {
  switch (status) {
    case NvmlStatus::no_permission:
      return "no permission";
    case NvmlStatus::driver_not_loaded:
      return "NVIDIA's driver is not loaded";
    case NvmlStatus::gpu_is_lost:
      return "a GPU has fallen off the bus";
    case NvmlStatus::function_not_found:
      return "this version lacks a function";
    default:
      return fmt::format("NVML's error {}", static_cast<int>(status));
  }
}

std::optional<PciAddress> address_of(const NvmlPciInfo& info) {
  std::array<char, sizeof info.bus_id + 1> text{};
  std::memcpy(text.data(), info.bus_id, sizeof info.bus_id);
  const auto address = parse_pci_address(text.data());
  return address.ok() ? std::optional(*address) : std::nullopt;
}

/// Initialises NVML and shuts it down.
class Use {
 public:
  // Passes no flags: with NO_ATTACH (2), driver 580.159 counts no GPUs.
  explicit Use(const NvmlTable& table) : table_(table), status_(table.init(0)) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    if (status_ == NvmlStatus::success) table_.shutdown();
  }
  NvmlStatus status() const { return status_; }

 private:
  const NvmlTable& table_;
  NvmlStatus status_;
};

class NvmlReader {
 public:
  NvmlReader(const NvmlTable& table, const NvmlQuestion& question)
      : table_(table), question_(question) {}

  NvmlList read() {
    unsigned count = 0;
    const NvmlStatus status = table_.device_count(&count);
    if (status != NvmlStatus::success) {
      list_.report.outcome = SourceReport::Outcome::failed;
      list_.report.detail = status_text(status);
      return std::move(list_);
    }
    for (unsigned index = 0; index < count; ++index) add_device(index);
    add_pairs();
    list_.report.detail =
        fmt::format("{} GPU{}", list_.gpus.size(), list_.gpus.size() == 1 ? "" : "s");
    if (lost_ > 0) list_.report.detail += fmt::format("; {} could not be asked", lost_);
    return std::move(list_);
  }

 private:
  template <typename Call>
  std::string text_of(const Call& call) const {
    std::array<char, 96> text{};
    const auto bytes = static_cast<unsigned>(text.size() - 1);
    return call(text.data(), bytes) == NvmlStatus::success ? std::string(text.data()) : "";
  }

  std::string uuid_of(NvmlDevice device) const {
    return text_of([&](char* text, unsigned bytes) { return table_.uuid(device, text, bytes); });
  }

  void add_device(unsigned index) {
    NvmlDevice device = nullptr;
    if (table_.device_by_index(index, &device) != NvmlStatus::success) {
      ++lost_;
      return;
    }
    Gpu gpu;
    gpu.nvml_index = static_cast<int>(index);
    gpu.name = text_of([&](char* text, unsigned n) { return table_.name(device, text, n); });
    gpu.uuid = uuid_of(device);
    NvmlPciInfo pci{};
    if (table_.pci_info(device, &pci) == NvmlStatus::success) gpu.pci = address_of(pci);
    unsigned generation = 0;
    unsigned lanes = 0;
    if (question_.pcie_links &&
        table_.pcie_generation(device, &generation) == NvmlStatus::success &&
        table_.pcie_width(device, &lanes) == NvmlStatus::success) {
      gpu.pcie_now_gbps = pcie_gbps(generation, lanes);
      gpu.pcie_gbps = gpu.pcie_now_gbps;
    }
    if (add_mig_instances(device, gpu)) return;
    add_fabric(device, gpu);
    devices_.push_back(device);
    peer_links_.push_back(read_links(device, gpu));
    list_.gpus.push_back(std::move(gpu));
  }

  /// Adds the MIG instances in place of the GPU. Returns whether the GPU is in MIG mode.
  bool add_mig_instances(NvmlDevice device, const Gpu& whole) {
    unsigned current = 0;
    unsigned pending = 0;
    unsigned most = 0;
    if (table_.mig_mode(device, &current, &pending) != NvmlStatus::success || current == 0 ||
        table_.mig_most(device, &most) != NvmlStatus::success) {
      return false;
    }
    for (unsigned index = 0; index < most; ++index) {
      NvmlDevice instance = nullptr;
      if (table_.mig_device(device, index, &instance) != NvmlStatus::success) continue;
      Gpu gpu = whole;
      gpu.mig_instance = static_cast<int>(index);
      gpu.uuid = uuid_of(instance);
      const std::string name =
          text_of([&](char* text, unsigned n) { return table_.name(instance, text, n); });
      if (!name.empty()) gpu.name = name;
      devices_.push_back(nullptr);
      peer_links_.emplace_back();
      list_.gpus.push_back(std::move(gpu));
    }
    return true;
  }

  void add_fabric(NvmlDevice device, Gpu& gpu) const {
    NvmlFabricInfo info{};
    if (table_.fabric_info(device, &info) != NvmlStatus::success ||
        info.state != Constants::kFabricReady || info.status != NvmlStatus::success) {
      return;
    }
    FabricClique fabric;
    std::memcpy(fabric.cluster.data(), info.cluster, fabric.cluster.size());
    fabric.clique = info.clique;
    // Machines without a fabric between hosts report a ready fabric without a name.
    if (fabric.cluster != std::array<std::byte, 16>{}) gpu.fabric = fabric;
  }

  /// Counts the links to switches in `gpu`; returns the number of links to other GPUs by address.
  std::map<PciAddress, int> read_links(NvmlDevice device, Gpu& gpu) const {
    std::map<PciAddress, int> peers;
    int links = 0;
    for (unsigned link = 0; link < Constants::kMostLinks; ++link) {
      unsigned active = 0;
      unsigned type = 0;
      if (table_.link_state(device, link, &active) != NvmlStatus::success) break;
      if (active == 0 || table_.link_remote_type(device, link, &type) != NvmlStatus::success) {
        continue;
      }
      ++links;
      NvmlPciInfo remote{};
      if (type == Constants::kRemoteSwitch) {
        ++gpu.switch_links;
      } else if (type == Constants::kRemoteGpu &&
                 table_.link_remote_pci(device, link, &remote) == NvmlStatus::success) {
        if (const auto address = address_of(remote)) ++peers[*address];
      }
    }
    if (links > 0) gpu.link_gbps = link_gbps(device);
    return peers;
  }

  double link_gbps(NvmlDevice device) const {
    NvmlFieldValue speed{};
    speed.field = Constants::kLinkSpeedField;
    if (table_.field_values(device, 1, &speed) != NvmlStatus::success ||
        speed.status != NvmlStatus::success) {
      return 0;
    }
    return speed.value.as_unsigned * 8 / 1000.0;
  }

  std::optional<bool> can(NvmlDevice from, NvmlDevice to, unsigned capability) const {
    unsigned status = 0;
    if (table_.p2p_status(from, to, capability, &status) != NvmlStatus::success) {
      return std::nullopt;
    }
    return status == 0;
  }

  void add_pairs() {
    const auto count = static_cast<int>(list_.gpus.size());
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from != to && is_asked_of(from)) list_.pairs.push_back(pair_of(from, to));
      }
    }
  }

  bool is_asked_of(int from) const {
    if (question_.from == nullptr) return true;
    const auto& address = list_.gpus[static_cast<std::size_t>(from)].pci;
    return std::any_of(question_.from->begin(), question_.from->end(),
                       [&](const Gpu& gpu) { return gpu.pci && gpu.pci == address; });
  }

  void add_capabilities(NvmlDevice from, NvmlDevice to, GpuPair& pair) const {
    if (question_.from != nullptr && can(from, to, Constants::nvlink) == true) {
      pair.maps = true;
      pair.atomics = true;
      return;
    }
    const auto read = can(from, to, Constants::read);
    const auto write = can(from, to, Constants::write);
    if (read && write) pair.maps = *read && *write;
    pair.atomics = can(from, to, Constants::atomics).value_or(false);
  }

  GpuPair pair_of(int from, int to) const {
    const auto at = [](int index) { return static_cast<std::size_t>(index); };
    GpuPair pair;
    pair.from = from;
    pair.to = to;
    const NvmlDevice a = devices_[at(from)];
    const NvmlDevice b = devices_[at(to)];
    if (a == nullptr || b == nullptr) {
      pair.maps = false;  // a MIG instance
      return pair;
    }
    add_capabilities(a, b, pair);
    const auto& address = list_.gpus[at(to)].pci;
    if (!address) return pair;
    const auto links = peer_links_[at(from)].find(*address);
    if (links != peer_links_[at(from)].end()) pair.links = links->second;
    return pair;
  }

  const NvmlTable& table_;
  const NvmlQuestion& question_;
  NvmlList list_;
  std::vector<NvmlDevice> devices_;  // null for a MIG instance
  std::vector<std::map<PciAddress, int>> peer_links_;
  int lost_ = 0;
};

}  // namespace

NvmlList read_nvml(const NvmlLibrary& nvml, const NvmlQuestion& question) {
  NvmlList list;
  list.report.source = "NVML";
  if (!nvml.missing.empty()) {
    list.report.outcome = SourceReport::Outcome::absent;
    list.report.detail = nvml.missing;
    return list;
  }
  const Use use(nvml.table);
  if (use.status() != NvmlStatus::success) {
    list.report.outcome = SourceReport::Outcome::failed;
    list.report.detail = status_text(use.status());
    return list;
  }
  list = NvmlReader(nvml.table, question).read();
  std::array<char, 96> version{};
  const NvmlStatus asked =
      nvml.table.driver_version(version.data(), static_cast<unsigned>(version.size() - 1));
  list.report.source = asked == NvmlStatus::success ? fmt::format("NVML, driver {}", version.data())
                                                    : std::string("NVML");
  return list;
}

}  // namespace oriel::topo
