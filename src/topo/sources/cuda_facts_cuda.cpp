// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/cuda_table.hpp"
#include "topo/sources/cuda_facts.hpp"

namespace oriel::topo {
namespace {

/// Formats the 16 bytes of a UUID as NVIDIA's tools do, without their prefix.
std::string uuid_text(const CUuuid& uuid) {
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

int attribute_of(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return cuda().device_get_attribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

GpuPair& pair_of(Machine& machine, int from, int to) {
  const auto found =
      std::find_if(machine.pairs.begin(), machine.pairs.end(),
                   [&](const GpuPair& pair) { return pair.from == from && pair.to == to; });
  if (found != machine.pairs.end()) return *found;
  GpuPair fresh;
  fresh.from = from;
  fresh.to = to;
  return machine.pairs.emplace_back(fresh);
}

void describe(Gpu& gpu, CUdevice device, int ordinal) {
  gpu.ordinal = ordinal;
  gpu.architecture = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                     attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  std::array<char, 96> name{};
  if (cuda().device_get_name(name.data(), static_cast<int>(name.size()), device) == CUDA_SUCCESS) {
    gpu.name = name.data();
  }
  gpu.fd_handles =
      attribute_of(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  gpu.fabric_handles = attribute_of(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
}

/// Queries each device, then each pair. Continues after a refusal and keeps the first error.
class CudaFactsReader {
 public:
  explicit CudaFactsReader(Machine& machine) : machine_(machine) {}

  CudaFacts read() {
    if (Status ready = cuda_ready(); !ready.ok()) {
      return {{"CUDA", SourceReport::Outcome::absent, ready.error().message()}, std::move(ready)};
    }
    int count = 0;
    if (!succeeds(cuda().device_get_count(&count),
                  [] { return std::string("counting devices"); })) {
      return {{"CUDA", SourceReport::Outcome::failed, "it does not say how many devices there are"},
              std::move(complete_)};
    }
    for (int ordinal = 0; ordinal < count; ++ordinal) add_device(ordinal);
    number_parts();
    for (const Seen& from : seen_) {
      for (const Seen& to : seen_) {
        if (from.index != to.index) add_pair(from, to);
      }
    }
    int version = 0;
    static_cast<void>(cuda().driver_get_version(&version));
    return {{fmt::format("CUDA driver {}.{}", version / 1000, version % 1000 / 10),
             SourceReport::Outcome::used,
             fmt::format("{} visible device{}", count, count == 1 ? "" : "s")},
            std::move(complete_)};
  }

 private:
  struct Seen {
    int ordinal;
    CUdevice device;
    int index;  // in Machine::gpus
  };

  /// Returns whether `status` is success; otherwise keeps the first error. `what` names the action.
  template <typename What>
  bool succeeds(CUresult status, const What& what) {
    if (status == CUDA_SUCCESS) return true;
    if (complete_.ok()) complete_ = cuda_status(what(), status);
    return false;
  }

  void add_device(int ordinal) {
    CUdevice device = 0;
    if (!succeeds(cuda().device_get(&device, ordinal),
                  [&] { return fmt::format("opening device {}", ordinal); })) {
      return;
    }
    const std::size_t index = entry_of(device, ordinal);
    describe(machine_.gpus[index], device, ordinal);
    seen_.push_back({ordinal, device, static_cast<int>(index)});
  }

  std::optional<PciAddress> address_of(CUdevice device, int ordinal) {
    std::array<char, 32> text{};
    if (!succeeds(cuda().device_get_pci_bus_id(text.data(), static_cast<int>(text.size()), device),
                  [&] { return fmt::format("asking for the PCI id of device {}", ordinal); })) {
      return std::nullopt;
    }
    const auto address = parse_pci_address(text.data());
    return address.ok() ? std::optional(*address) : std::nullopt;
  }

  /// Returns the index of the device's entry, which is added if there is none. An entry without the
  /// device's UUID belongs to the first device at that PCI address. A second device there with
  /// another UUID is a partition of the same GPU, such as MPS shows by memory. It shares the GPU's
  /// place and links.
  std::size_t entry_of(CUdevice device, int ordinal) {
    CUuuid uuid{};
    const bool named = succeeds(cuda().device_get_uuid(&uuid, device), [&] {
      return fmt::format("asking for the UUID of device {}", ordinal);
    });
    const std::string text = named ? uuid_text(uuid) : std::string();
    const auto address = address_of(device, ordinal);
    auto& gpus = machine_.gpus;
    const auto by_uuid = [&](const Gpu& gpu) { return named && gpu.uuid.ends_with(text); };
    const auto at_address = [&](const Gpu& gpu) {
      return address && gpu.pci == address && gpu.mig_instance < 0;
    };
    const auto is_open = [&](const Gpu& gpu) {
      return at_address(gpu) && (!is_seen(gpu) || !named || gpu.uuid.empty());
    };
    auto found = std::find_if(gpus.begin(), gpus.end(), by_uuid);
    if (found == gpus.end()) found = std::find_if(gpus.begin(), gpus.end(), is_open);
    if (found == gpus.end()) {
      const auto sibling = std::find_if(gpus.begin(), gpus.end(), at_address);
      Gpu fresh = sibling == gpus.end() ? Gpu{} : *sibling;
      fresh.pci = address;
      fresh.uuid.clear();
      fresh.partition = -1;
      found = gpus.insert(gpus.end(), std::move(fresh));
    }
    if (named && !by_uuid(*found)) found->uuid = "GPU-" + text;
    return static_cast<std::size_t>(found - gpus.begin());
  }

  bool is_seen(const Gpu& gpu) const {
    const auto index = static_cast<int>(&gpu - machine_.gpus.data());
    return std::any_of(seen_.begin(), seen_.end(),
                       [&](const Seen& one) { return one.index == index; });
  }

  /// Numbers the partitions of GPUs that CUDA shows as several devices, by ascending ordinal.
  void number_parts() {
    std::map<PciAddress, std::vector<Gpu*>> devices;
    for (const Seen& one : seen_) {
      Gpu& gpu = machine_.gpus[static_cast<std::size_t>(one.index)];
      if (gpu.pci && gpu.mig_instance < 0) devices[*gpu.pci].push_back(&gpu);
    }
    for (auto& [address, parts] : devices) {
      if (parts.size() < 2) continue;
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i]->partition = static_cast<int>(i);
    }
  }

  void add_pair(const Seen& from, const Seen& to) {
    int can = 0;
    if (!succeeds(cuda().device_can_access_peer(&can, from.device, to.device), [&] {
          return fmt::format("asking whether device {} reaches device {}", from.ordinal,
                             to.ordinal);
        })) {
      return;
    }
    GpuPair& pair = pair_of(machine_, from.index, to.index);
    pair.maps = can != 0;
    int atomics = 0;
    if (can != 0 &&
        cuda().device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                        from.device, to.device) == CUDA_SUCCESS) {
      pair.atomics = atomics != 0;
    }
  }

  Machine& machine_;
  std::vector<Seen> seen_;
  Status complete_;
};

}  // namespace

CudaFacts read_cuda_facts(Machine& machine) {
  return CudaFactsReader(machine).read();
}

}  // namespace oriel::topo
