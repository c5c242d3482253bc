// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <fmt/format.h>

#include "topo/machine/process_machine.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::test {

/// Makes the process see a machine with two NUMA nodes with these processors, and two GPUs, until
/// destroyed. Device 0 is at node 0 and device 1 at node 1.
class NumaMachine {
 public:
  explicit NumaMachine(const std::string& first = "0-3", const std::string& second = "4-7") {
    files_.file("/sys/devices/system/node/online", "0-1\n");
    for (const int node : {0, 1}) {
      files_.file(fmt::format("/sys/devices/system/node/node{}/cpulist", node),
                  (node == 0 ? first : second) + "\n");
      files_.file(fmt::format("/sys/bus/pci/devices/0000:{:02}:00.0/numa_node", node + 1),
                  fmt::format("{}\n", node));
    }
  }

 private:
  topo::TemporaryTree files_;
  topo::ProcessMachine machine_{{topo::FileTree(files_.root())}};
  topo::ScopedProcessMachine scoped_{machine_};
};

}  // namespace oriel::test
