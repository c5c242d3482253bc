// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"
#include "topo/xml/xml_reader.hpp"

namespace oriel::topo {

/// The machine that a file describes, in NCCL's format (<system>) or hwloc's (<topology>), which is
/// told by its first element. Nothing of the machine that this runs on goes into it.
Result<Machine> read_machine_file(const std::string& path, const XmlLimits& limits = {});

/// Writes a description in NCCL's format. A plain file is replaced in one step: whoever reads it
/// finds all of it. What a link names, and devices, are written to; pipes and sockets are refused.
Status dump_machine(const Machine& machine, const std::string& path);

}  // namespace oriel::topo
