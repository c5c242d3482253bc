// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topo/machine/process_machine.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {

/// A process on a machine of files and a model of NVML, with two NUMA nodes of two processors.
/// Records the questions to both.
struct FakeProcess {
  TemporaryTree tree;
  FakeNvml nvml;
  NvmlLibrary library = nvml.library();
  std::vector<std::string> asked;  ///< paths of files
  int nvml_asked = 0;
  ProcessMachine machine{sources()};

  FakeProcess() {
    tree.file("/sys/devices/system/node/online", "0-1\n");
    tree.file("/sys/devices/system/node/node0/cpulist", "0-1\n");
    tree.file("/sys/devices/system/node/node1/cpulist", "2-3\n");
  }

  /// Returns sources for another process on this machine.
  MachineSources sources() {
    const auto note = [this](std::string_view path) { asked.emplace_back(path); };
    return {FileTree(tree.root(), note), [this]() -> const NvmlLibrary& {
              ++nvml_asked;
              return library;
            }};
  }
};

}  // namespace oriel::topo
