// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// Models NVML for the calling thread. The most recently created living instance answers.
struct FakeNvml {
  struct Link {
    bool active = true;
    unsigned type = NvmlConstants::kRemoteSwitch;
    std::string remote;  ///< the PCI address of a GPU
  };
  struct Device {
    std::string pci;
    std::string uuid;
    std::string name = "NVIDIA H200";
    unsigned pcie_generation = 5;
    unsigned pcie_width = 16;
    std::vector<Link> links;
    unsigned link_megabytes = 26562;
    std::vector<std::string> instances;  ///< UUIDs; MIG is enabled if there are any
    NvmlFabricInfo fabric{};
    bool lost = false;
  };
  struct Refused {
    int from, to;
    unsigned capability;
  };

  std::vector<Device> devices;
  std::vector<Refused> refused;  ///< pairs without a capability
  bool knows_peers = true;       ///< true if NVML answers questions about pairs
  NvmlStatus init = NvmlStatus::success;
  NvmlStatus count = NvmlStatus::success;
  int open = 0;  ///< NVML initializations without a shutdown yet

  FakeNvml();
  ~FakeNvml();
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

  NvmlLibrary library() const;

 private:
  FakeNvml* previous_;
};

}  // namespace oriel::topo
