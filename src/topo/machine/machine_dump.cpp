// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/machine_dump.hpp"

#include "base/write_file.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {

Status dump_machine(const Machine& machine, const std::string& path) {
  return write_file(path, write_nccl_xml(machine));
}

}  // namespace oriel::topo
