// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"
#include "topo/xml/xml_reader.hpp"

namespace oriel::topo {

/// Reads the machine that a file describes, in NCCL's format (<system>) or hwloc's (<topology>).
/// The root element determines the format. Nothing of the local machine is added.
Result<Machine> read_machine_file(const std::string& path, const XmlLimits& limits = {});

/// Writes a description in NCCL's format. A plain file is replaced atomically, so that readers find
/// a complete file. Targets of links and devices are written in place; pipes and sockets are
/// refused.
Status dump_machine(const Machine& machine, const std::string& path);

}  // namespace oriel::topo
